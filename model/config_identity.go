package model

import (
	"fmt"
	"io"
)

// writeIdentity writes the part of a model's identity that its config determines: what the
// network computes.
func (c *Config) writeIdentity(w io.Writer) {
	fmt.Fprintf(w, "%s %d %d %d %d %d %d %d %v %v\n", c.Arch, c.Layers, c.Hidden, c.Intermediate,
		c.Heads, c.KVHeads, c.HeadDim, c.Vocab, c.NormEps, ropeIdentity(&c.Rope))
	c.writeDeviations(w)
}

// ropeIdentity writes the settings of a rotation as identities have them.
func ropeIdentity(r *RopeConfig) string {
	return fmt.Sprintf("{%v %v %v %v %v %v %v %v %v %v %v %v}", r.Type, r.Theta, r.Factor, r.OriginalMax, r.LowFreq, r.HighFreq,
		r.BetaFast, r.BetaSlow, r.NoTruncate, r.AttentionFactor, r.MScale, r.MScaleAllDim)
}

// writeDeviations writes what a network does that layers of the Llama kind do not; for such
// layers it writes nothing. Settings to come must write nothing where they are not used.
func (c *Config) writeDeviations(w io.Writer) {
	for _, r := range c.ropeConfigs() {
		if r.Partial != 0 || r.QueryBeta != 0 || r.LongFactors != nil {
			fmt.Fprintf(w, "rope %v %v %v %v\n", r.Partial, r.QueryBeta, r.ShortFactors, r.LongFactors)
		}
	}
	for _, r := range c.moreRopes {
		fmt.Fprintf(w, "more %s\n", ropeIdentity(&r))
	}
	if s := c.scalars; s != (scalars{}) {
		fmt.Fprintf(w, "scalars %v %v %v %v %v\n", s.embedScale, s.embedRounded, s.logitScale, s.logitCap, s.normOffset)
	}
	for at, p := range c.plan {
		fmt.Fprintf(w, "layer %d %d %d %d %v %v %v %v %v", at, p.window, p.rope, p.qkNorm, p.scoreScale, p.scoreCap, p.preNorm, p.postNorm, p.residualScale)
		f := p.ffn
		fmt.Fprintf(w, " %d %d %d %d %v %d\n", f.activation, f.width, f.experts, f.chosen, f.normalise, f.shared)
	}
}
