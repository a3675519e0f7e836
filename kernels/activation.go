package kernels

// Activation is the nonlinearity of a gated unit.
type Activation uint8

const (
	SiLU     Activation = iota // x/(1 + e^(-x))
	GELUTanh                   // x/(1 + e^(-2·√(2/π)·(x + 0.044715·x³))), the tanh form of GELU (Hendrycks and Gimpel, 2016)
	activations
)

// Activations returns all of them.
func Activations() []Activation {
	list := make([]Activation, activations)
	for i := range list {
		list[i] = Activation(i)
	}
	return list
}

func (a Activation) String() string { return [...]string{"SiLU", "GELU"}[a] }

// Gated sets dst[i] to the activation of gate[i], times up[i]. Every operation is rounded by
// itself, a cube as (x·x)·x. dst may be gate or up.
func (c CPU) Gated(a Activation, dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	raceRead(gate)
	raceRead(up)
	raceWrite(dst)
	switch a {
	case SiLU:
		for i := c.swigluAsm(dst, gate, up); i < len(dst); i++ {
			g := gate[i]
			dst[i] = g / (1 + Exp(-g)) * up[i]
		}
	case GELUTanh:
		c.geglu(dst, gate, up)
	default:
		panic("kernels: unknown activation")
	}
}

// geglu computes e = Exp(-2·y) with y = √(2/π)·(gate + 0.044715·gate³), then gate/(1 + e)·up.
func (c CPU) geglu(dst, gate, up []float32) {
	var e [elementTile]float32
	for len(dst) > 0 {
		n := min(len(dst), len(e))
		for i, g := range gate[:n] {
			cube := float32(float32(g*g) * g)
			e[i] = float32(g+float32(geluCubic*cube)) * geluSlope
		}
		c.Exp(e[:n], e[:n])
		for i, g := range gate[:n] {
			dst[i] = float32(g/(1+e[i])) * up[i]
		}
		dst, gate, up = dst[n:], gate[n:], up[n:]
	}
}

const (
	geluCubic = 0.044715
	geluSlope = -1.5957691216057308 // -2·√(2/π)

	// elementTile elements are worked on at a time where a result goes through memory.
	elementTile = 256
)

// SoftCap sets x[i] = limit·(2/(1 + e) - 1) with e = Exp(x[i]·(-2/limit)), which is
// limit·tanh(x[i]/limit): at most limit in size. Every operation is rounded by itself.
func (c CPU) SoftCap(x []float32, limit float32) {
	raceWrite(x)
	var e [elementTile]float32
	slope := -2 / limit
	for len(x) > 0 {
		n := min(len(x), len(e))
		for i, v := range x[:n] {
			e[i] = v * slope
		}
		c.Exp(e[:n], e[:n])
		for i, v := range e[:n] {
			x[i] = limit * float32(2/(1+v)-1)
		}
		x = x[n:]
	}
}

// Scale sets x[i] *= s.
func (c CPU) Scale(x []float32, s float32) {
	raceWrite(x)
	for i := range x {
		x[i] *= s
	}
}

// AddScaled sets dst[i] += x[i]·s for i < len(x); product and sum are rounded separately.
func (c CPU) AddScaled(dst, x []float32, s float32) {
	dst = dst[:len(x)]
	raceRead(x)
	raceWrite(dst)
	for i, v := range x {
		dst[i] += float32(v * s)
	}
}
