package kvevents

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// blockTokens is the length of a block: the one that routers assume by default.
const blockTokens = 16

// medium is vLLM's name for memory from which requests are served directly.
const medium = "GPU"

// blocks are those of the prompts that a model has in its cache. Prompts with a common
// prefix share blocks: a block is there as long as any prompt holds it.
type blocks struct {
	held    map[uint64]int            // prompts that hold a block, by its hash
	prompts map[[sha256.Size]byte]int // how often a prompt is held, by its digest
}

func newBlocks() *blocks {
	return &blocks{held: map[uint64]int{}, prompts: map[[sha256.Size]byte]int{}}
}

// hashes returns the hash of every whole block of a prompt, which identifies all tokens
// up to its end and for the label, and a digest of the prompt.
func hashes(label string, tokens []int32) (list []uint64, all [sha256.Size]byte) {
	sum := sha256.Sum256([]byte(label))
	text := make([]byte, 0, sha256.Size+4*blockTokens)
	for block := range slices.Chunk(tokens, blockTokens) {
		text = append(text[:0], sum[:]...)
		for _, t := range block {
			text = binary.LittleEndian.AppendUint32(text, uint32(t))
		}
		if sum = sha256.Sum256(text); len(block) == blockTokens {
			list = append(list, binary.BigEndian.Uint64(sum[:]))
		}
	}
	return list, sum
}

// put records that a prompt is kept. It returns an event for the blocks that no other
// prompt holds; nil if there are none.
func (b *blocks) put(label string, tokens []int32) pack {
	list, all := hashes(label, tokens)
	b.prompts[all]++
	known := 0
	for i, h := range list {
		if b.held[h]++; b.held[h] > 1 {
			known = i + 1 // whoever holds a block holds those before it
		}
	}
	if known == len(list) {
		return nil
	}
	var p pack
	p.array(8)
	p.str("BlockStored")
	p.hashes(list[known:])
	if known > 0 {
		p.uint64(list[known-1])
	} else {
		p.null()
	}
	p.array((len(list) - known) * blockTokens)
	for _, t := range tokens[known*blockTokens : len(list)*blockTokens] {
		p.uint32(uint32(t))
	}
	p.uint32(blockTokens)
	p.null() // lora_id
	p.str(medium)
	p.null() // lora_name
	return p
}

// remove records that a prompt has left the prefix cache. It returns an event for the blocks
// that no other prompt holds; nil if there are none. Prompts that were never put, or not
// since the last clearing, are ignored.
func (b *blocks) remove(label string, tokens []int32) pack {
	list, all := hashes(label, tokens)
	if b.prompts[all] == 0 {
		return nil
	}
	if b.prompts[all]--; b.prompts[all] == 0 {
		delete(b.prompts, all)
	}
	var gone []uint64
	for _, h := range list {
		if b.held[h]--; b.held[h] == 0 {
			delete(b.held, h)
			gone = append(gone, h)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	var p pack
	p.array(3)
	p.str("BlockRemoved")
	p.hashes(gone)
	p.str(medium)
	return p
}

// cleared returns the event that takes back everything.
func cleared() pack {
	var p pack
	p.array(1)
	p.str("AllBlocksCleared")
	return p
}

func (p *pack) hashes(list []uint64) {
	p.array(len(list))
	for _, h := range list {
		p.uint64(h)
	}
}
