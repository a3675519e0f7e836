package kvcache_test

import (
	"fmt"
	"log"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/tensor"
)

func Example() {
	c, err := kvcache.New(kvcache.Options{Layers: 1, KVHeads: 2, HeadDim: 4, Type: tensor.BF16})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// Three tokens, for both heads at once: a row holds the keys of all heads.
	keys, values := make([]float32, 3*8), make([]float32, 3*8)
	for head := range 2 {
		if err := c.Append(0, head, []int32{0, 1, 2}, keys[head*4:], values[head*4:], 8); err != nil {
			log.Fatal(err)
		}
	}

	// Head 1 forgets the token at position 1; head 0 keeps all.
	if err := c.Keep(0, 1, []int32{0, 2}); err != nil {
		log.Fatal(err)
	}

	// A question that leaves no trace in c.
	child, err := c.Fork()
	if err != nil {
		log.Fatal(err)
	}
	defer child.Close()
	if err := child.Append(0, 1, []int32{3}, keys, values, 4); err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Positions(0, 0, nil), c.Positions(0, 1, nil), child.Positions(0, 1, nil))
	// Output: [0 1 2] [0 2] [0 2 3]
}
