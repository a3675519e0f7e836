package solve

// pavaBlock is a run of entries that share one projected gain, sum/n.
type pavaBlock struct {
	sum float64
	n   int64
}

// pava projects gains onto non-increasing sequences in least squares (pool
// adjacent violators, spec 5.3) and returns the blocks of the result. A block is
// merged into its predecessor while the predecessor's mean is not larger; means
// are compared by cross-multiplication, so equal means always merge and
// neighbouring blocks differ strictly.
func pava[F float32 | float64](gains []F) []pavaBlock {
	var blocks []pavaBlock
	for _, g := range gains {
		last := pavaBlock{float64(g), 1}
		for len(blocks) > 0 {
			prev := blocks[len(blocks)-1]
			if prev.sum*float64(last.n) > last.sum*float64(prev.n) {
				break
			}
			last.sum += prev.sum
			last.n += prev.n
			blocks = blocks[:len(blocks)-1]
		}
		blocks = append(blocks, last)
	}
	return blocks
}
