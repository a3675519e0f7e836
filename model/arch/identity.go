package arch

import (
	"fmt"
	"io"
)

// WriteIdentity writes the part of a model's identity that its config determines: what the
// network computes.
func (c *Config) WriteIdentity(w io.Writer) {
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
	if s := c.Scalars; s != (Scalars{}) {
		fmt.Fprintf(w, "scalars %v %v %v %v %v\n", s.embedScale, s.embedRounded, s.LogitScale, s.LogitCap, s.NormOffset)
	}
	for at, p := range c.plan {
		p.writeIdentity(w, at)
	}
}
