#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[r] = Σ_k w[r][k]*x[r*K+k], k ascending from zero, for K columns of w; or, with GATES, of
// which K is 1: y[r] += x[r]/(1 + e^(-w[r][0])).

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint GATES = 0;

layout(push_constant) uniform P {
	uvec2 x, y, w;
	uint n, places, ldx, ldy, ldw;
};

void main() {
	uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	precise float s = GATES == 1 ? OutF(y).v[r * ldy + i] : 0.0;
	for (uint k = 0; k < places; k++) {
		float f = InF(w).v[r * ldw + k];
		if (GATES == 1) f = 1.0 / (1.0 + expo(-f));
		precise float p = f * InF(x).v[(r * places + k) * ldx + i];
		s += p;
	}
	OutF(y).v[r * ldy + i] = s;
}
