#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Sums of queries before rotation and of their products, relative to the first
// query, per query head. Each sum takes one row after the other and carries the
// error of its last addition (Kahan), so that neither chunks nor length matter.
//
// State: 8 words, the first of which counts the rows (origin.comp adds to it), and
// per head: origin [D], sum [D], its error [D], products [D][D] (upper triangle),
// their errors [D][D].

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint D = 128;

layout(push_constant) uniform P {
	uvec2 q, state;
	uint ldq, row, n, products;
};

void main() {
	uint id = gl_GlobalInvocationID.x, h = gl_WorkGroupID.y;
	InF Q = InF(q);
	OutF S = OutF(state);
	uint base = 8 + h * (3 * D + 2 * D * D), at = row * ldq + h * D;
	bool first = InU(state).v[0] == 0; // there is no origin yet
	bool sum = id < D;
	if (!sum && products == 0) return;
	uint a = sum ? id : (id - D) / D, b = sum ? id : (id - D) % D;
	if (a >= D || b < a) return;
	float oa = first ? Q.v[at + a] : S.v[base + a];
	float ob = first ? Q.v[at + b] : S.v[base + b];
	uint to = base + (sum ? D + a : 3 * D + a * D + b), err = to + (sum ? D : D * D);
	precise float s = first ? 0.0 : S.v[to], c = first ? 0.0 : S.v[err];
	for (uint i = 0; i < n; i++) {
		precise float x = Q.v[at + a] - oa;
		if (!sum) {
			precise float y = Q.v[at + b] - ob;
			x = x * y;
		}
		precise float u = x - c;
		precise float t = s + u;
		c = (t - s) - u;
		s = t;
		at += ldq;
	}
	S.v[to] = s;
	S.v[err] = c;
}
