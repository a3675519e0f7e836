#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "quants.glsl"

// x[r][i] = table[ids[r]][i], widened. Ids, whole f32 numbers, beyond the table give zeros.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint T = 2;

layout(push_constant) uniform P {
	uvec2 ids, table, x;
	uint n, pitch, ldx, vocab, ldi;
};

void main() {
	uint i = gl_GlobalInvocationID.x, r = gl_WorkGroupID.y;
	if (i >= n) return;
	float number = InF(ids).v[r * ldi];
	bool found = number >= 0.0 && number < float(vocab);
	uint id = found ? uint(number) : 0;
	// Rows are multiples of 8 elements or of 16 bytes, so the row is found in units that fit 32 bits.
	float v = 0.0;
	if (found) {
		V8 e = weights8(InU4(table), id * rowUnits(pitch, T), i / 8 * 8, T);
		uint k = i % 8;
		v = k < 4 ? e.a[k] : e.b[k - 4];
	}
	OutF(x).v[r * ldx + i] = v;
}
