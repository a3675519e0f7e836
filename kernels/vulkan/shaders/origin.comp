#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Keeps the first query of every head as the origin of its moments.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint D = 128;

layout(push_constant) uniform P {
	uvec2 q, state;
	uint ldq, row, H;
};

void main() {
	uint id = gl_GlobalInvocationID.x;
	if (id >= H * D) return;
	OutF(state).v[id / D * (3 * D + 2 * D * D) + id % D] = InF(q).v[row * ldq + id];
}
