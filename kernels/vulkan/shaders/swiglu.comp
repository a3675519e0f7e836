#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[r][i] = gate/(1 + e^(-gate))·up; with ADD: y[r][i] += gate[r][i] (up unused);
// with ROUND: y = gate, rounded. A thread takes two elements.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint YT = 0;
layout(constant_id = 1) const uint OP = 0; // 0 SwiGLU, 1 add, 2 convert

layout(push_constant) uniform P {
	uvec2 gate, up, y;
	uint n, rows, ldg, ldy;
};

float one(uint r, uint i) {
	float g = InF(gate).v[r * ldg + i];
	if (OP == 2) return g;
	if (OP == 1) {
		precise float s = OutF(y).v[r * ldy + i] + g;
		return s;
	}
	return swiglu(g, InF(up).v[r * ldg + i]);
}

void main() {
	uint i = 2 * gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	bool two = i + 1 < n;
	float a = one(r, i), b = two ? one(r, i + 1) : 0.0;
	if (YT == F32) {
		OutF(y).v[r * ldy + i] = a;
		if (two) OutF(y).v[r * ldy + i + 1] = b;
	} else {
		OutU(y).v[(r * ldy + i) / 2] = pack2(a, b, YT);
	}
}
