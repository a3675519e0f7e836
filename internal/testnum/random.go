package testnum

import (
	"hash/fnv"
	"math/rand/v2"
)

// Style is a kind of numbers.
type Style int

const (
	Plain   Style = iota // of order one
	Hard                 // subnormal, tiny, huge, zeros, ties
	Special              // hard, with infinities and NaN
	Tiny                 // products of two, and their sums, are near the smallest normal float32
)

func (s Style) String() string { return [...]string{"plain", "hard", "special", "tiny"}[s] }

// Bits returns the bits of a random floating-point number with exp bits of exponent and man
// bits of mantissa: 8 and 23 for f32, 8 and 7 for bf16, 5 and 10 for f16. It uses no function
// whose results differ between processors.
func Bits(r *rand.Rand, st Style, exp, man uint32) uint32 {
	wide := exp == 8
	bias := uint32(1)<<(exp-1) - 1
	sign := uint32(r.Uint64()>>63) << (exp + man)
	frac := uint32(r.Uint64()) & (1<<man - 1)
	e := bias - uint32(r.Uint64()%8) // 2^-7 … 2
	if st == Tiny {
		e = bias/2 + uint32(r.Uint64()%4) // for f16, only somewhat small
	} else if st != Plain {
		switch k := r.Uint64() % 32; {
		case k < 3:
			e = 0 // zero or subnormal
			frac >>= r.Uint64() % uint64(man+1)
		case k < 6:
			e = 1 + uint32(r.Uint64()%3) // smallest normal
		case k < 8:
			frac = 0 // powers of two make ties and cancel
		case k < 9:
			e, frac = 0, 0
		case k < 10 && wide:
			e = bias/2 + uint32(r.Uint64()%4) // squares underflow
		case k < 11 && wide:
			e = bias/2 - 1 - uint32(r.Uint64()%12)
		case k == 11 && r.Uint64()%4 == 0:
			e = 2*bias - uint32(r.Uint64()%uint64(bias/2)) // large
		}
	}
	if st == Special && r.Uint64()%256 == 0 {
		e = 2*bias + 1
		if r.Uint64()%2 == 0 {
			frac = 0
		}
	}
	return sign | e<<man | frac
}

// Hash returns a number for a name, to seed a source with.
func Hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
