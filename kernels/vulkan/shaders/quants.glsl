// Weights of all types: those of common.glsl, and blocks of integers with common scales.
//
// A block is stored as in a file: tensor.Quants says how each type packs 32 or 256 integers q
// of at most 8 bits, and that element i is worth D·Scale[i/16]·q[i] - Min·Least[i/16]. Both
// products are exact in f32, so a value is rounded once, whether or not an fma is fused. Rows
// are whole blocks and begin at multiples of 16 bytes.
//
// The type is a constant of a pipeline, after whose choice nothing is left of the others.

const uint Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q5_0 = 6, Q5_1 = 7, Q2_K = 8, Q3_K = 9, Q4_K = 10, Q5_K = 11, Q6_K = 12,
	IQ4_NL = 13, IQ4_XS = 14, MXFP4 = 15;

bool superBlocks(uint type) { return type >= Q2_K && type <= Q6_K || type == IQ4_XS; }

uint blockBytes(uint type) {
	return type == Q8_0 ? 34 : type == Q4_0 || type == IQ4_NL ? 18 : type == Q4_1 ? 20 : type == Q5_0 ? 22 :
		type == Q5_1 ? 24 : type == Q2_K ? 84 : type == Q3_K ? 110 : type == Q4_K ? 144 : type == Q5_K ? 176 :
		type == Q6_K ? 210 : type == IQ4_XS ? 136 : 17;
}

// rowUnits returns how far rows of cols elements are apart, in units of 8 elements or, for
// blocks, of 16 bytes.
uint rowUnits(uint cols, uint type) {
	if (type < Q8_0) return cols / 8;
	return (cols / (superBlocks(type) ? 256 : 32) * blockBytes(type) + 15) / 16;
}

// A place in a row: its first word, and bytes from there on.
uint byteAt(InU p, uint row, uint at) { return p.v[row + at / 4] >> at % 4 * 8 & 0xffu; }

uint halfAt(InU p, uint row, uint at) { return p.v[row + at / 4] >> at % 4 * 8 & 0xffffu; } // at is even

// bytesAt returns 8 bytes; aligned says that they begin with a word. No word is read that has
// none of them.
uvec2 bytesAt(InU p, uint row, uint at, bool aligned) {
	uint i = row + at / 4;
	if (aligned) return uvec2(p.v[i], p.v[i + 1]);
	uint s = at % 4 * 8, middle = p.v[i + 1];
	// A shift by 32 bits is undefined, two of 1 and 31 are not.
	return uvec2(p.v[i] >> s | middle << 1 << (31 - s), middle >> s | p.v[row + (at + 7) / 4] << 1 << (31 - s));
}

// wholeWords reports whether blocks, and what they have 4 or 8 of, begin with a word.
bool wholeWords(uint type) {
	return type == Q4_1 || type == Q5_1 || type == Q2_K || type == Q4_K || type == Q5_K || type == IQ4_XS;
}

// firstLow returns the byte of a block at which its integers' low bits begin.
uint firstLow(uint type) {
	return type == Q8_0 || type == Q4_0 || type == IQ4_NL ? 2 : type == Q4_1 ? 4 : type == Q5_0 ? 6 :
		type == Q5_1 || type == IQ4_XS ? 8 : type == Q2_K || type == Q4_K ? 16 : type == Q3_K ? 32 :
		type == Q5_K ? 48 : type == Q6_K ? 0 : 1;
}

// lowBits returns the low bits of elements e … e+7 of the block at byte b, a byte for each.
uvec2 lowBits(InU p, uint row, uint b, uint e, uint type) {
	uint at, shift = 0, mask = 0x0f0f0f0fu;
	if (type == Q8_0) {
		at = e;
		mask = 0xffffffffu;
	} else if (type == Q2_K || type == Q3_K) {
		at = e / 128 * 32 + e % 32;
		shift = e / 32 % 4 * 2;
		mask = 0x03030303u;
	} else if (type == Q4_K || type == Q5_K) {
		at = e / 64 * 32 + e % 32;
		shift = e / 32 % 2 * 4;
	} else if (type == Q6_K) {
		at = e / 128 * 64 + e % 64;
		shift = e / 64 % 2 * 4;
	} else {
		at = e / 32 * 16 + e % 16;
		shift = e / 16 % 2 * 4;
	}
	return bytesAt(p, row, b + firstLow(type) + at, wholeWords(type)) >> shift & mask;
}

// spread puts the lower four bits of x into the lowest of a byte each.
uint spread(uint x) { return (x & 15u) * 0x00204081u & 0x01010101u; }

// highBits returns what lowBits leaves out, in place.
uvec2 highBits(InU p, uint row, uint b, uint e, uint type) {
	uint l = e % 32, j = e / 32; // element l of part j of 32 elements
	if (type == Q5_0 || type == Q5_1) {
		uint bits = byteAt(p, row, b + (type == Q5_0 ? 2 : 4) + e / 8);
		return uvec2(spread(bits), spread(bits >> 4)) << 4;
	}
	if (type == Q5_K) return (bytesAt(p, row, b + 16 + l, true) >> j & 0x01010101u) << 4;
	if (type == Q6_K) return (bytesAt(p, row, b + 128 + j / 4 * 32 + l, false) >> j % 4 * 2 & 0x03030303u) << 4;
	if (type == Q3_K) return (bytesAt(p, row, b + l, false) >> j & 0x01010101u) << 2;
	return uvec2(0);
}

// levels returns the integers that the four bytes of bits stand for.
vec4 levels(uint bits, uint type) {
	ivec4 q = ivec4(uvec4(bits) << uvec4(24, 16, 8, 0)) >> 24;
	if (type == IQ4_NL || type == IQ4_XS || type == MXFP4) {
		// 16 bytes, the first in the lowest of x: tensor.Type.Levels.
		uvec4 t = type == MXFP4 ? uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu)
			: uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
		bvec4 odd = notEqual(q & 4, ivec4(0)), upper = greaterThan(q, ivec4(7));
		uvec4 word = mix(mix(t.xxxx, t.yyyy, odd), mix(t.zzzz, t.wwww, odd), upper);
		q = ivec4(word << uvec4(24 - q % 4 * 8)) >> 24;
	}
	return vec4(q - (type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == Q6_K ? 32 : type == Q3_K ? 4 : 0));
}

// wideHalf widens an f16. Scales of small weights are subnormal, which devices may take for zero.
float wideHalf(uint h) {
	uint e = h >> 10 & 31u, m = h & 0x3ffu;
	precise float small = float(m) * uintBitsToFloat(0x33800000u); // 2^-24
	float x = e == 0u ? small : uintBitsToFloat((e == 31u ? 255u : e + 112u) << 23 | m << 13);
	return (h & 0x8000u) != 0u ? -x : x;
}

// powerOfTwo is 2^(e-128), the scale of MXFP4, whose levels are doubled; 255 is NaN.
float powerOfTwo(uint e) {
	return uintBitsToFloat(e < 2u ? 0x200000u << e : e == 255u ? 0x7fc00000u : (e - 1u) << 23);
}

// twoScales returns the scale and the minimum of part j of 32 elements of Q4_K or Q5_K.
uvec2 twoScales(InU p, uint row, uint b, uint j) {
	uint at = row + b / 4, s = j % 4 * 8;
	uint scale = p.v[at + 1] >> s, least = p.v[at + 2] >> s, both = p.v[at + 3] >> s;
	if (j < 4) return uvec2(scale, least) & 63u;
	return uvec2(both & 15u, both >> 4 & 15u) | uvec2(scale, least) >> 2 & 48u;
}

// superScale returns the integer scale and minimum of element e of a block of 256.
ivec2 superScale(InU p, uint row, uint b, uint e, uint type) {
	uint g = e / 16, j = e / 32;
	if (type == Q2_K) {
		uint both = byteAt(p, row, b + g);
		return ivec2(both & 15u, both >> 4);
	}
	if (type == Q3_K) {
		uint low = byteAt(p, row, b + 96 + g % 8) >> g / 8 * 4 & 15u;
		return ivec2(int(low | (byteAt(p, row, b + 104 + g % 4) >> g / 4 * 2 & 3u) << 4) - 32, 0);
	}
	if (type == Q6_K) return ivec2(bitfieldExtract(int(byteAt(p, row, b + 192 + g)), 0, 8), 0);
	if (type == IQ4_XS) {
		uint low = byteAt(p, row, b + 4 + j / 2) >> j % 2 * 4 & 15u;
		return ivec2(int(low | (halfAt(p, row, b + 2) >> 2 * j & 3u) << 4) - 32, 0);
	}
	return ivec2(twoScales(p, row, b, j));
}

// scales returns D·Scale and Min·Least of element e.
vec2 scales(InU p, uint row, uint b, uint e, uint type) {
	if (type == MXFP4) return vec2(powerOfTwo(byteAt(p, row, b)), 0);
	if (type == Q4_1 || type == Q5_1) return vec2(wideHalf(halfAt(p, row, b)), -wideHalf(halfAt(p, row, b + 2)));
	if (!superBlocks(type)) return vec2(wideHalf(halfAt(p, row, b)), 0);
	uint at = b + (type == Q2_K ? 80 : type == Q3_K ? 108 : type == Q6_K ? 208 : 0);
	bool minima = type == Q2_K || type == Q4_K || type == Q5_K;
	vec2 d = vec2(wideHalf(halfAt(p, row, at)), minima ? wideHalf(halfAt(p, row, at + 2)) : 0.0);
	precise vec2 s = d * vec2(superScale(p, row, b, e, type));
	return s;
}

// weights8 returns elements k … k+7 of a row of weights, which begins row units of rowUnits
// from p on.
V8 weights8(InU4 p, uint row, uint k, uint type) {
	if (type < Q8_0) return load8(p, row + k / 8, type);
	uint n = superBlocks(type) ? 256 : 32, b = k / n * blockBytes(type), e = k % n;
	InU w = InU(uvec2(p));
	row *= 4;
	vec2 s = scales(w, row, b, e, type);
	uvec2 q = lowBits(w, row, b, e, type) | highBits(w, row, b, e, type);
	return V8(fma(s.xxxx, levels(q.x, type), -s.yyyy), fma(s.xxxx, levels(q.y, type), -s.yyyy));
}
