#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// ids[r], whole f32 numbers in ascending order, are the places of the largest of row r of x, the
// first of equals, NaN counting as -Inf; w[r] are their shares of Σ e^(x[r][i] - largest), or
// of the sum of those shares. A workgroup is a row.

layout(local_size_x = 64) in;

layout(push_constant) uniform P {
	uvec2 x, ids, w;
	uint n, chosen, ldx, ldi, ldw, normalise;
};

shared uint best[64], at[64], places[1024];
shared float sums[64], shares[1024];

// rank has the order of the numbers that bits stand for, all of them above 0.
uint rank(uint bits) {
	uint size = bits & 0x7fffffffu;
	if (size > 0x7f800000u) bits = 0xff800000u;
	if (size == 0u) bits = 0u;
	return bits >> 31 != 0u ? ~bits : bits | 0x80000000u;
}

float share(uint i, float largest) {
	precise float d = InF(x).v[i] - largest;
	return expo(d);
}

void main() {
	uint t = gl_LocalInvocationID.x, r = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, row = r * ldx;
	// The next one comes after the last in descending order, then by place.
	uint last = ~0u, where = 0u;
	for (uint c = 0; c < chosen; c++) {
		uint b = 0u, k = 0u;
		for (uint i = t; i < n; i += 64) {
			uint v = rank(InU(x).v[row + i]);
			if (v > b && (v < last || v == last && i > where)) {
				b = v;
				k = i;
			}
		}
		best[t] = b;
		at[t] = k;
		barrier();
		for (uint h = 32; h > 0; h >>= 1) {
			if (t < h && (best[t + h] > best[t] || best[t + h] == best[t] && at[t + h] < at[t])) {
				best[t] = best[t + h];
				at[t] = at[t + h];
			}
			barrier();
		}
		last = best[0];
		where = at[0];
		if (t == 0) places[c] = where;
		barrier();
	}
	float largest = InF(x).v[row + places[0]];
	precise float s = 0.0;
	for (uint i = t; i < n; i += 64) s += share(row + i, largest);
	sums[t] = s;
	barrier();
	for (uint h = 32; h > 0; h >>= 1) {
		if (t < h) {
			precise float both = sums[t] + sums[t + h];
			sums[t] = both;
		}
		barrier();
	}
	for (uint c = t; c < chosen; c += 64) shares[c] = share(row + places[c], largest) / sums[0];
	barrier();
	precise float all = 0.0;
	for (uint c = 0; c < chosen; c++) all += shares[c];
	if (normalise == 0u) all = 1.0;
	for (uint c = t; c < chosen; c += 64) {
		uint before = 0;
		for (uint o = 0; o < chosen; o++) before += places[o] < places[c] ? 1 : 0;
		OutF(ids).v[r * ldi + before] = float(places[c]);
		OutF(w).v[r * ldw + before] = shares[c] / all;
	}
}
