package weights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// Identity hashes what makes two checkpoints interchangeable: names, types,
// shapes and 64 bytes at each of 16 places per tensor. Reading all of a
// multi-gigabyte checkpoint would cost more than loading it.
func (w *Weights) Identity(cfg *arch.Config) string {
	h := sha256.New()
	cfg.WriteIdentity(h)
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

// Digest returns the hash of identity and all bytes of the weights. If digests is not "",
// results are kept in that folder, and taken from it while the files stay the same.
func (w *Weights) Digest(ctx context.Context, identity, digests string, log *slog.Logger) (string, error) {
	c := &digestCache{w: w, identity: identity, folder: digests, log: log}
	files := c.stampFiles()
	if d := c.known(files); d != "" {
		return d, nil
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", identity)
	var err error
	w.Each(func(_ string, t tensor.Tensor) {
		const part = 1 << 20
		for from := 0; from < len(t.Data) && err == nil; from += part {
			if err = ctx.Err(); err == nil {
				h.Write(t.Data[from:min(from+part, len(t.Data))])
			}
		}
	})
	if err != nil {
		return "", err
	}
	d := "sha256:" + hex.EncodeToString(h.Sum(nil))
	c.keep(files, d)
	return d, nil
}
