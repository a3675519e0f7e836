// Functions of package kernels that are made of e^x.

// softCap limits x to limit·tanh(x/limit).
float softCap(float x, float limit) {
	precise float h = x * (-2.0 / limit);
	precise float s = limit * (2.0 / (1.0 + expo(h)) - 1.0);
	return s;
}

// geglu is g/(1 + e^(-2·√(2/π)·(g + 0.044715·g³)))·u.
float geglu(float g, float u) {
	precise float square = g * g, cube = square * g, part = 0.044715 * cube, sum = g + part, h = sum * -1.5957691216;
	precise float s = g / (1.0 + expo(h)) * u;
	return s;
}

// swiglu is g/(1 + e^(-g))·u.
float swiglu(float g, float u) {
	precise float s = g / (1.0 + expo(-g)) * u;
	return s;
}

// gated is kernels.CPU.Gated of an activation.
float gated(uint activation, float g, float u) {
	switch (activation) {
	case 0: return swiglu(g, u);
	default: return geglu(g, u);
	}
}
