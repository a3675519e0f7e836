#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Comes after moments.comp: keeps the first query of every head as the origin, if
// there is none, and counts the rows. One workgroup.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint D = 128;

layout(push_constant) uniform P {
	uvec2 q, state;
	uint ldq, row, H, n;
};

void main() {
	uint tid = gl_LocalInvocationID.x, count = InU(state).v[0];
	if (count == 0) {
		for (uint i = tid; i < H * D; i += 256) OutF(state).v[8 + i / D * (3 * D + 2 * D * D) + i % D] = InF(q).v[row * ldq + i];
	}
	barrier();
	if (tid == 0) OutU(state).v[0] = count + n;
}
