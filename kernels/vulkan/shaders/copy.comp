#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Copies n words of 16 bytes. A workgroup copies 1024, which it asks for at once.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 dst, src;
	uint n;
};

void main() {
	uint item = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	uint first = item * 1024 + gl_LocalInvocationID.x;
	uvec4 w[4];
	[[unroll]] for (uint i = 0; i < 4; i++) {
		uint at = first + 256 * i;
		if (at < n) w[i] = InU4(src).v[at];
	}
	[[unroll]] for (uint i = 0; i < 4; i++) {
		uint at = first + 256 * i;
		if (at < n) OutU4(dst).v[at] = w[i];
	}
}
