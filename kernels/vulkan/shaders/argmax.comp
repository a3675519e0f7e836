#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// out[r], f32, is the index of the largest x[r][i], the first of equals; 0 if none is above -Inf.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 x, out_;
	uint n, ldx, ldo;
};

shared float best[256];
shared uint at[256];

void main() {
	uint t = gl_LocalInvocationID.x, r = gl_WorkGroupID.x;
	float b = uintBitsToFloat(0xff800000u);
	uint k = 0;
	for (uint i = t; i < n; i += 256) {
		float v = InF(x).v[r * ldx + i];
		if (v > b) {
			b = v;
			k = i;
		}
	}
	best[t] = b;
	at[t] = k;
	barrier();
	for (uint h = 128; h > 0; h >>= 1) {
		if (t < h) {
			float o = best[t + h];
			if (o > best[t] || (o == best[t] && at[t + h] < at[t])) {
				best[t] = o;
				at[t] = at[t + h];
			}
		}
		barrier();
	}
	if (t == 0) OutF(out_).v[r * ldo] = float(at[0]);
}
