package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"unicode/utf8"
)

// tokenizerJSON returns a tokenizer.json with size tokens, at least 256, to measure how
// long reading one takes: a byte-level tokenizer like those of Llama 3 and Qwen 2, with
// made-up words of about the length of theirs.
func tokenizerJSON(size int) ([]byte, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := make([]string, 0, size)
	vocab := make(map[string]int, size)
	add := func(piece string) {
		vocab[piece] = len(pieces)
		pieces = append(pieces, piece)
	}
	// Bytes that are not visible Latin-1 characters are represented by code points from 256.
	hidden := rune(256)
	for b := range rune(256) {
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			b, hidden = hidden, hidden+1
		}
		add(string(b))
	}
	letters := pieces['a' : 'z'+1]
	var merges []string
	for len(pieces) < size {
		// A new word is an existing one and a letter, or two existing ones.
		a, b := letters[rng.IntN(len(letters))], letters[rng.IntN(len(letters))]
		if n := len(pieces) - 256; n > 0 {
			a = pieces[256+rng.IntN(n)]
			if rng.IntN(3) == 0 {
				b = pieces[256+rng.IntN(n)]
			}
		}
		if _, known := vocab[a+b]; known || utf8.RuneCountInString(a+b) > 16 {
			continue
		}
		merges = append(merges, a+" "+b)
		add(a + b)
	}
	type object = map[string]any
	split := `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	text, err := json.Marshal(object{
		"version": "1.0",
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": split}, "behavior": "Isolated", "invert": false},
			{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		}},
		"decoder": object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
		"model":   object{"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges},
	})
	if err != nil {
		return nil, fmt.Errorf("make up a tokenizer of %d tokens: %w", size, err)
	}
	return text, nil
}
