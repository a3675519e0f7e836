package forward

import "github.com/lukv/lukv/model/arch"

// act names a matrix of activations of a forward pass, [rows][columns].
type act uint8

const (
	actX         act = iota // [Hidden] residual stream
	actNorm                 // [Hidden] normalised
	actQ                    // [Heads*HeadDim]
	actK                    // [KVHeads*HeadDim]
	actV                    // [KVHeads*HeadDim]
	actAttention            // [Heads*HeadDim]
	actMLP                  // [Intermediate]
	actLogits               // [Vocab]
	actBranch               // [Hidden] added to actX later
	actEnd
)

// columns returns the number of columns of an activation in a model of config c.
func (a act) columns(c *arch.Config) int {
	switch a {
	case actQ, actAttention:
		return c.Heads * c.HeadDim
	case actK, actV:
		return c.KVHeads * c.HeadDim
	case actMLP:
		return c.Intermediate
	case actLogits:
		return c.Vocab
	}
	return c.Hidden
}
