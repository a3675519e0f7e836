#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[r][i] = x[r][i] as bf16. A thread takes two neighbours, which share a word.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 x, y;
	uint n, ldx, ldy;
};

void main() {
	uint i = 2 * gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	InF X = InF(x);
	float a = X.v[r * ldx + i], b = i + 1 < n ? X.v[r * ldx + i + 1] : 0.0;
	OutU(y).v[(r * ldy + i) / 2] = pack2(a, b, BF16);
}
