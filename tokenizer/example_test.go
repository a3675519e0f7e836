package tokenizer_test

import (
	"fmt"
	"log"

	"github.com/lukv/lukv/tokenizer"
)

func Example() {
	tok, err := tokenizer.Open("testdata/models/needle-llama")
	if err != nil {
		log.Fatal(err)
	}
	ids := tok.Encode("<s><|user|>What is 481523?", tokenizer.EncodeOptions{})
	for _, id := range ids {
		fmt.Printf("%d %q\n", id, tok.Piece(id))
	}
	fmt.Println(tok.Decode(ids, true))
	// Output:
	// 1 "<s>"
	// 3 "<|user|>"
	// 480 "What"
	// 406 "Ġis"
	// 48 "Ġ"
	// 320 "48"
	// 287 "15"
	// 295 "23"
	// 79 "?"
	// What is 481523?
}

// A stream returns a character when its last byte has arrived.
func ExampleStreamDecoder() {
	tok, err := tokenizer.Open("testdata/models/needle-llama")
	if err != nil {
		log.Fatal(err)
	}
	d := tok.NewDecoder(true)
	for _, id := range tok.Encode("ok 🙂<|end|>", tokenizer.EncodeOptions{}) {
		fmt.Printf("%q ", d.Write(id))
	}
	fmt.Printf("%q\n", d.Flush())
	// Output: "o" "k" " " "" "" "" "🙂" "" ""
}
