package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

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
