// What all shaders share: memory by address, element types, and the functions
// whose bits must not depend on which shader calls them.
//
// Types: 0 f32, 1 f16, 2 bf16. Sums are chains of fma under "precise", so that
// neither a driver's optimiser nor the shape of a tile changes their order. Whether
// an fma is fused is up to the device; it is the same everywhere on one device.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : enable

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer InF { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OutF { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer InU { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer OutU { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer InU2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer InU4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer OutU4 { uvec4 v[]; };

const uint F32 = 0, F16 = 1, BF16 = 2;

struct V8 { vec4 a, b; };

float unbf(uint h) { return uintBitsToFloat(h << 16); }

vec4 widen(uvec2 w, uint type) {
	if (type == F16) return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
	return vec4(uintBitsToFloat(w.x << 16), uintBitsToFloat(w.x & 0xffff0000u), uintBitsToFloat(w.y << 16), uintBitsToFloat(w.y & 0xffff0000u));
}

// load8 returns elements 8i … 8i+7 of an array.
V8 load8(InU4 p, uint i, uint type) {
	if (type == F32) return V8(uintBitsToFloat(p.v[2 * i]), uintBitsToFloat(p.v[2 * i + 1]));
	uvec4 w = p.v[i];
	return V8(widen(w.xy, type), widen(w.zw, type));
}

// dot8 continues the chain s over 8 products.
float dot8(V8 x, V8 y, float s) {
	precise float t = s;
	t = fma(x.a.x, y.a.x, t);
	t = fma(x.a.y, y.a.y, t);
	t = fma(x.a.z, y.a.z, t);
	t = fma(x.a.w, y.a.w, t);
	t = fma(x.b.x, y.b.x, t);
	t = fma(x.b.y, y.b.y, t);
	t = fma(x.b.z, y.b.z, t);
	t = fma(x.b.w, y.b.w, t);
	return t;
}

// bits16 rounds to f16 or bf16, nearest even.
uint bits16(float x, uint type) {
	uint b = floatBitsToUint(x), a = b & 0x7fffffffu;
	if (type == BF16) {
		if (a > 0x7f800000u) return b >> 16 | 0x40u;
		return (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
	}
	uint s = b >> 16 & 0x8000u;
	if (a >= 0x47800000u) return s | (a > 0x7f800000u ? 0x7e00u : 0x7c00u);
	if (a < 0x38800000u) {
		// Below 2^-14 the sum with 1/2 has the right last place.
		precise float m = uintBitsToFloat(a) + 0.5;
		return s | (floatBitsToUint(m) - 0x3f000000u);
	}
	a -= 0x38000000u;
	return s | (a + 0xfffu + (a >> 13 & 1u)) >> 13;
}

// roundBF16 rounds to bf16, nearest even.
float roundBF16(float x) { return unbf(bits16(x, BF16)); }

uint pack2(float lo, float hi, uint type) { return bits16(lo, type) | bits16(hi, type) << 16; }

float unpack1(InU p, uint i, uint type) {
	if (type == F32) return uintBitsToFloat(p.v[i]);
	uint w = p.v[i >> 1];
	w = (i & 1u) == 0u ? w & 0xffffu : w >> 16;
	return type == F16 ? unpackHalf2x16(w).x : unbf(w);
}

// scaled is r's power of two, -1/2 ≤ r ≤ 1/2, times 2^n: the polynomial of package kernels.
float scaled(float r, float n) {
	precise float p = uintBitsToFloat(0x392209c5u);
	p = fma(p, r, uintBitsToFloat(0x3aaf8444u));
	p = fma(p, r, uintBitsToFloat(0x3c1d952au));
	p = fma(p, r, uintBitsToFloat(0x3d6357b6u));
	p = fma(p, r, uintBitsToFloat(0x3e75fdf0u));
	p = fma(p, r, uintBitsToFloat(0x3f317218u));
	p = fma(p, r, 1.0);
	return p * uintBitsToFloat(uint(int(n) + 127) << 23);
}

// power2 is 2^x, without subnormal results.
float power2(float x) {
	if (!(x >= -125.5)) return 0.0;
	if (x >= 127.5) return uintBitsToFloat(0x7f800000u);
	float n = roundEven(x);
	precise float r = x - n;
	return scaled(r, n);
}

// expo is e^x. Devices need not fuse fma, so the rest of x·log2 e is found by
// subtracting n·ln 2 in two parts, the first of which is exact.
float expo(float x) {
	const float log2e = 1.44269502;
	precise float h = x * log2e;
	if (!(h >= -125.5)) return 0.0;
	if (h >= 127.5) return uintBitsToFloat(0x7f800000u);
	float n = roundEven(h);
	precise float a = n * 0.693359375, b = n * -2.12194440e-4;
	precise float r = (x - a) - b;
	r *= log2e;
	return scaled(r, n);
}

// A head of a layer's cache: where its pages are, how many entries it held
// before this pass, and the logical slot of entry 0.
struct Head {
	uvec2 pages;
	uint start, base;
};

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Heads { Head v[]; };

// Where a row of a pass goes.
struct Row {
	uint seq;    // sequence: heads of KV head h are Heads[seq·KV + h]; ~0: its key and value are not kept
	uint offset; // the row's number among those that its sequence appends
	int pos;
	uint unused;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Rows { Row v[]; };

// A page holds PE entries: keys [DP/8][PE][8], values [PE][DP], positions [PE],
// where DP is the head dimension up to a multiple of 8 and what lies behind it zero.
// keyChunk and valueChunk are indices in units of 8 elements.
uint keyChunk(uint entry, uint chunk, uint PE) { return chunk * PE + entry; }
uint valueChunk(uint entry, uint chunk, uint PE, uint DP) { return (PE + entry) * (DP / 8) + chunk; }
uint pageWords(uint PE, uint DP, uint type) { return PE * DP * (type == F32 ? 2 : 1); } // keys and values

bool isNull(uvec2 p) { return (p.x | p.y) == 0u; }
