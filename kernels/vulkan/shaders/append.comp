#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"
#include "rotation.glsl"

// Rounds rotated keys, and values, to integers as kernels.IntRows defines them and stores them
// with their scales, and the positions, in the pages. A workgroup is one head's key, or its
// value, of one row; a thread takes four neighbouring elements.

layout(local_size_x = 64) in;

layout(push_constant) uniform P {
	uvec2 k, v, cs, rowsAt, heads; // cs as in rope.comp
	uint KV, ldk, ldv, ldt;
	uint first; // KV if keys are no integers
};

shared uint largest; // magnitude, as bits

// quotient returns the bits of a/b, rounded to nearest even, for the bits of positive a and b
// if they and the quotient are normal numbers. Devices may be some units off in a division;
// what is stored must not depend on them.
uint quotient(uint a, uint b) {
	uint n = a & 0x7fffffu | 0x800000u, d = b & 0x7fffffu | 0x800000u;
	uint e = (a >> 23) + 126 - (b >> 23);
	if (n < d) {
		n <<= 1;
		e--;
	}
	uint q = 0;
	[[dont_unroll]] for (uint i = 0; i < 24; i++) {
		bool one = n >= d;
		q = q << 1 | uint(one);
		n = (one ? n - d : n) << 1;
	}
	if (n > d || n == d && (q & 1u) != 0u) q++;
	return (e << 23) + q; // the leading bit of q adds 1 to the exponent
}

// element returns element i of a head's rotated key.
float element(uint row, uint head, uint i) {
	InF K = InF(k);
	uint at = row * ldk + head * D, j = i % (D / 2), t = row * ldt + j;
	if (isNull(cs)) return K.v[at + i];
	float a = K.v[at + j], b = K.v[at + D / 2 + j];
	turn(a, b, InF(cs).v[t], InF(cs).v[t + D / 2]);
	return i < D / 2 ? a : b;
}

void main() {
	uint tid = gl_LocalInvocationID.x, row = gl_WorkGroupID.y, side = first + gl_WorkGroupID.x;
	Row r = Rows(rowsAt).v[row];
	if (r.seq == ~0u) return;
	bool key = side < KV, have = 4 * tid < D;
	uint head = key ? side : side - KV;
	vec4 x = vec4(0);
	if (have && key) {
		x = vec4(element(row, head, 4 * tid), element(row, head, 4 * tid + 1), element(row, head, 4 * tid + 2), element(row, head, 4 * tid + 3));
	} else if (have) {
		uint at = row * ldv + head * D + 4 * tid;
		x = vec4(InF(v).v[at], InF(v).v[at + 1], InF(v).v[at + 2], InF(v).v[at + 3]);
	}
	if (tid == 0) largest = 0;
	barrier();
	uvec4 m = floatBitsToUint(x) & 0x7fffffffu;
	atomicMax(largest, max(max(m.x, m.y), max(m.z, m.w)));
	barrier();
	if (!have) return;

	const uint infinity = 0x7f800000u, tiniest = 0x0d800000u, most = 0x42fe0000u; // 2^-100, 127
	uint a = largest, scale = a >= infinity ? 0x7fc00000u : 0;
	ivec4 q = ivec4(0);
	if (a >= tiniest && a < infinity) {
		scale = quotient(a, most);
		precise vec4 y = x * uintBitsToFloat(quotient(most, a));
		q = ivec4(roundEven(y));
	}
	uvec4 b = uvec4(q) & 0xffu;
	uint word = b.x | b.y << 8 | b.z << 16 | b.w << 24;

	Head hd = Heads(heads).v[r.seq * KV + head];
	uint slot = hd.start + r.offset, e = slot % PE;
	OutU page = OutU(InU2(hd.pages).v[slot / PE]);
	page.v[2 * (key ? keyAt(e, tid / 2) : valueAt(e, tid / 2)) + tid % 2] = word;
	if (tid > 0) return;
	page.v[key ? keyScaleAt(e) : valueScaleAt(e)] = scale;
	if (!key) page.v[positionAt(e)] = uint(r.pos);
}
