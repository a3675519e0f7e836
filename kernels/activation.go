package kernels

// GeGLU sets dst[i] = gate[i]/(1 + e)·up[i] with e = Exp(-2·y) and
// y = √(2/π)·(gate[i] + 0.044715·gate[i]³): the tanh form of GELU (Hendrycks and Gimpel,
// 2016) of the gate, times up. Every operation is rounded by itself, the cube as
// (g·g)·g. dst may be gate or up.
func (c CPU) GeGLU(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	raceRead(gate)
	raceRead(up)
	raceWrite(dst)
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
