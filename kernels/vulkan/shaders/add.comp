#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[r][i] += f*x[r][i].

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 x, y;
	uint n, ldx, ldy;
	float f;
};

void main() {
	uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	precise float p = f * InF(x).v[r * ldx + i];
	precise float s = OutF(y).v[r * ldy + i] + p;
	OutF(y).v[r * ldy + i] = s;
}
