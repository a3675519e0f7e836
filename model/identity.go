package model

import (
	"context"
	"fmt"
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
	var d string
	err := m.weights.Reading(func() (err error) {
		d, err = m.weights.Digest(ctx, m.identity(), m.digests, m.log)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("digest of the weights: %w", err)
	}
	m.digest.Store(&d)
	return d, nil
}
