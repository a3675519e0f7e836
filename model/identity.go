package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/lukv/lukv/tensor"
)

// ID identifies the model in profiles and saved sessions: a hash of the
// configuration and of every tensor's name, type, shape and a sample of its bytes,
// computed on first use. After Close it is empty.
func (m *Model) ID() string {
	if m.hold() != nil {
		return ""
	}
	defer m.release()
	return m.identity()
}

// Digest returns the hash of all bytes of the weights, which ID only samples, so it
// always detects a rewritten checkpoint. It reads them all, once; see also
// [WithDigestCache]. Sessions saved afterwards carry it in their files; loading one that
// carries another digest fails with ErrWrongModel.
func (m *Model) Digest(ctx context.Context) (string, error) {
	if err := m.acquire(); err != nil {
		return "", fmt.Errorf("digest of the weights: %w", err)
	}
	defer m.release()
	m.digestMu.Lock()
	defer m.digestMu.Unlock()
	if d := m.digest.Load(); d != nil {
		return *d, nil
	}
	files := m.stampFiles()
	if d := m.knownDigest(files); d != "" {
		m.digest.Store(&d)
		return d, nil
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", m.identity())
	err := m.reading(func() (err error) {
		m.weights.Each(func(_ string, t tensor.Tensor) {
			const part = 1 << 20
			for from := 0; from < len(t.Data) && err == nil; from += part {
				if err = ctx.Err(); err == nil {
					h.Write(t.Data[from:min(from+part, len(t.Data))])
				}
			}
		})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("digest of the weights: %w", err)
	}
	d := "sha256:" + hex.EncodeToString(h.Sum(nil))
	m.digest.Store(&d)
	m.keepDigest(files, d)
	return d, nil
}

// identity hashes what makes two checkpoints interchangeable: names, types,
// shapes and 64 bytes at each of 16 places per tensor. Reading all of a
// multi-gigabyte checkpoint would cost more than loading it.
func identity(cfg *Config, w *Weights) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %d %d %d %d %d %d %d %v %v\n", cfg.Arch, cfg.Layers, cfg.Hidden, cfg.Intermediate,
		cfg.Heads, cfg.KVHeads, cfg.HeadDim, cfg.Vocab, cfg.NormEps, ropeIdentity(&cfg.Rope))
	cfg.writeDeviations(h)
	w.Each(func(name string, t tensor.Tensor) {
		fmt.Fprintf(h, "%s %v %v\n", name, t.Type, t.Shape)
		const places, size = 16, 64
		if len(t.Data) <= places*size {
			h.Write(t.Data)
			return
		}
		for i := range places {
			at := (len(t.Data) - size) / (places - 1) * i
			h.Write(t.Data[at : at+size])
		}
	})
	return "sha256:" + hex.EncodeToString(h.Sum(nil))[:32]
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
