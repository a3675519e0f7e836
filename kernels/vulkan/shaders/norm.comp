#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[r][i] = (x[r][i]·s)·w[i], s = 1/√(Σx²/n + eps): a workgroup per row.
// Thread t sums the squares of elements 2t, 2t+1, 2t+512, …; the threads are
// joined by a tree.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint YT = 0;

layout(push_constant) uniform P {
	uvec2 x, w, y;
	uint n, ldx, ldy, rows;
	float eps;
};

shared float part[256];

void main() {
	uint t = gl_LocalInvocationID.x, row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	if (row >= rows) return;
	InF X = InF(x);
	InF Wt = InF(w);
	uint at = row * ldx;
	precise float s = 0.0;
	for (uint i = 2 * t; i < n; i += 512) {
		float a = X.v[at + i];
		s = fma(a, a, s);
		if (i + 1 < n) {
			a = X.v[at + i + 1];
			s = fma(a, a, s);
		}
	}
	part[t] = s;
	barrier();
	for (uint h = 128; h > 0; h >>= 1) {
		if (t < h) part[t] += part[t + h];
		barrier();
	}
	precise float f = 1.0 / sqrt(part[0] / float(n) + eps);
	for (uint i = 2 * t; i < n; i += 512) {
		bool two = i + 1 < n;
		precise float a = X.v[at + i] * f, b = two ? X.v[at + i + 1] * f : 0.0;
		a *= Wt.v[i];
		if (two) b *= Wt.v[i + 1];
		if (YT == F32) {
			OutF(y).v[row * ldy + i] = a;
			if (two) OutF(y).v[row * ldy + i + 1] = b;
		} else {
			OutU(y).v[(row * ldy + i) / 2] = pack2(a, b, YT);
		}
	}
}
