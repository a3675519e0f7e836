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
// shapes and 64 bytes at each of 16 places per tensor, whose rows count in the published
// order. Reading all of a multi-gigabyte checkpoint would cost more than loading it.
func (w *Weights) Identity(cfg *arch.Config) string {
	h := sha256.New()
	cfg.WriteIdentity(h)
	const places, size = 16, 64
	var sample [places * size]byte
	w.each(func(name string, t tensor.Tensor, rows RowOrder) {
		fmt.Fprintf(h, "%s %v %v\n", name, t.Type, t.Shape)
		if len(t.Data) <= len(sample) {
			rows.copy(sample[:len(t.Data)], t, 0)
			h.Write(sample[:len(t.Data)])
			return
		}
		for i := range places {
			rows.copy(sample[i*size:(i+1)*size], t, (len(t.Data)-size)/(places-1)*i)
		}
		h.Write(sample[:])
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
	part := make([]byte, 1<<20)
	w.each(func(_ string, t tensor.Tensor, rows RowOrder) {
		for from := 0; from < len(t.Data) && err == nil; from += len(part) {
			if err = ctx.Err(); err == nil {
				b := part[:min(len(part), len(t.Data)-from)]
				rows.copy(b, t, from)
				h.Write(b)
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
