package model

import (
	"errors"
	"fmt"
	"math"
)

// ErrNotFinite says that the model computed logits that are not finite numbers:
// its weights are damaged, or too large for the arithmetic in use. The tokens
// that led to them were not added.
var ErrNotFinite = errors.New("logits are not finite numbers")

// finite reports whether x holds neither a NaN nor an infinity.
func finite(x []float32) bool {
	const exponent = 0x7f800000
	for _, v := range x {
		if math.Float32bits(v)&exponent == exponent {
			return false
		}
	}
	return true
}

// notFinite returns ErrNotFinite with the first layer in which it shows, judging by
// the last n keys and values in the cache.
func (s *Session) notFinite(n int) error {
	c := s.m.cfg
	var buf []float32
	for at := range c.Layers {
		for h := range c.KVHeads {
			held := s.cache.Len(at, h)
			from := max(0, held-n)
			if buf = s.cache.Keys(at, h, from, held, buf); !finite(buf) {
				return fmt.Errorf("%w, first in the keys of layer %d", ErrNotFinite, at)
			}
			if buf = s.cache.Values(at, h, from, held, buf); !finite(buf) {
				return fmt.Errorf("%w, first in the values of layer %d", ErrNotFinite, at)
			}
		}
	}
	return fmt.Errorf("%w, after the attention of the last layer", ErrNotFinite)
}
