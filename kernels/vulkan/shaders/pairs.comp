#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "activation.glsl"

// y[r][i] = x[r][i], or with GELU geglu(x[r][i], u[r][i]), as a type. A thread takes two
// neighbours, which share a word of bf16.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint YT = 0;
layout(constant_id = 1) const uint GELU = 0;

layout(push_constant) uniform P {
	uvec2 x, u, y;
	uint n, ldx, ldu, ldy;
};

float value(uint r, uint i) {
	float v = InF(x).v[r * ldx + i];
	return GELU == 0 ? v : geglu(v, InF(u).v[r * ldu + i]);
}

void main() {
	uint i = 2 * gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	bool two = i + 1 < n;
	float a = value(r, i), b = two ? value(r, i + 1) : 0.0;
	if (YT == F32) {
		OutF(y).v[r * ldy + i] = a;
		if (two) OutF(y).v[r * ldy + i + 1] = b;
	} else {
		OutU(y).v[(r * ldy + i) / 2] = pack2(a, b, YT);
	}
}
