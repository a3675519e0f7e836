package lukv

import (
	"fmt"

	"github.com/lukv/lukv/internal/detmath"
)

// Rerotate renumbers the n keys of one head in place: row i, [D] after RoPE in
// the half-split layout, moves from position positions[i] to position i. The
// sequence continues at position n. Rotations compose, so the cached keys
// suffice; a scale on them (yarn) stays as it is. invFreq holds the effective
// frequencies, [D/2] (spec 3.8). Only for heads that all hold the same number
// of entries, as after StreamingLLM or any uniform budget.
func Rerotate(keys []float32, positions []int32, invFreq []float64) error {
	half := len(invFreq)
	D := 2 * half
	if len(keys) != len(positions)*D {
		return fmt.Errorf("renumber keys: found %d values for %d positions, expected %d", len(keys), len(positions), len(positions)*D)
	}
	sin, cos := make([]float64, half), make([]float64, half)
	last := 0 // shift that sin and cos belong to; runs of entries share theirs
	for i, p := range positions {
		shift := i - int(p)
		if shift == 0 {
			continue
		}
		if shift != last {
			for j, f := range invFreq {
				sin[j], cos[j] = detmath.SinCos(float64(shift) * f)
			}
			last = shift
		}
		k := keys[i*D : (i+1)*D]
		for j := range half {
			a, b := float64(k[j]), float64(k[half+j])
			k[j] = float32(float64(a*cos[j]) - float64(b*sin[j]))
			k[half+j] = float32(float64(b*cos[j]) + float64(a*sin[j]))
		}
	}
	return nil
}
