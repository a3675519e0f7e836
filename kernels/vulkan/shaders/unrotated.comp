#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"
#include "angle.glsl"

// Reductions of keys whose rotation is undone (half-split layout). MODE
//
//   0  sums of the keys of a block of 256 slots; vectors.comp computes their mean
//   1  out[h][t] = |key - mean|²
//   2  out[h][t] = key·a + value·b
//
// A workgroup is a block of slots of a KV head. Where one vector meets many keys, it is the
// vector that turns, to the position of each key.

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint MODE = 0;

layout(push_constant) uniform P {
	uvec2 out_, work, heads, frequencies; // work: [KV][blocks+2][DP] as in vectors.comp, in mode 2 a and b, [KV][2][DP]
	uint head0, ldo, blocks, held;
};

const uint HALF = D / 2;
const uint LANES = 256 / HALF; // of mode 0: sums over slots
shared float sums[512]; // [LANES][D]

// turned returns element j of the vector at an offset in work, turned to position p.
float turned(uint at, uint j, uint p) {
	if (j >= D) return 0.0;
	bool left = j < HALF;
	uint other = left ? j + HALF : j - HALF;
	vec2 t = cosSin(p, InU2(frequencies).v[min(j, other)]);
	precise float x = InF(work).v[at + j] * t.x, y = InF(work).v[at + other] * (left ? -t.y : t.y);
	precise float s = x + y;
	return s;
}

// turned8 returns elements 8c … 8c+7. A loop over them would let glslc forget which products
// are rounded by themselves.
V8 turned8(uint at, uint c, uint p) {
	uint j = 8 * c;
	vec4 a = vec4(turned(at, j, p), turned(at, j + 1, p), turned(at, j + 2, p), turned(at, j + 3, p));
	vec4 b = vec4(turned(at, j + 4, p), turned(at, j + 5, p), turned(at, j + 6, p), turned(at, j + 7, p));
	return V8(a, b);
}

// keyElement returns element i of the key of an entry.
float keyElement(InU4 page, uint e, uint i, float factor) {
	V8 x = loadKey(page, e, i / 8, factor);
	return i % 8 < 4 ? x.a[i % 4] : x.b[i % 4];
}

void main() {
	uint tid = gl_LocalInvocationID.x, h = gl_WorkGroupID.y, b = gl_WorkGroupID.x;
	Head hd = Heads(heads).v[head0 + h];
	uint n = hd.start + held, slot = b * 256 + tid;
	InU2 pages = InU2(hd.pages);
	if (MODE == 0) {
		uint base = h * (blocks + 2) * DP + b * DP;
		uint lane = tid / HALF, f = tid % HALF;
		if (lane < LANES) {
			uvec2 frequency = InU2(frequencies).v[f];
			precise float x = 0.0, y = 0.0;
			for (uint s = b * 256 + lane; s < min(n, b * 256 + 256); s += LANES) {
				InU4 page = InU4(pages.v[s / PE]);
				uint e = s % PE;
				float factor = keyScale(page, e), u = keyElement(page, e, f, factor), v = keyElement(page, e, HALF + f, factor);
				vec2 t = cosSin(InU(pages.v[s / PE]).v[positionAt(e)], frequency);
				x = fma(u, t.x, fma(v, t.y, x));
				y = fma(v, t.x, fma(-u, t.y, y));
			}
			sums[lane * D + f] = x;
			sums[lane * D + HALF + f] = y;
		}
		barrier();
		if (tid < DP && b * 256 < n) {
			precise float s = 0.0;
			if (tid < D) {
				for (uint l = 0; l < LANES; l++) s += sums[l * D + tid];
			}
			OutF(work).v[base + tid] = s;
		}
		return;
	}
	if (slot >= n) return;
	uvec2 at = pages.v[slot / PE];
	InU4 page = InU4(at);
	uint e = slot % PE, p = InU(at).v[positionAt(e)];
	float factor = keyScale(page, e);
	precise float s = 0.0;
	if (MODE == 1) {
		uint mean = h * (blocks + 2) * DP + blocks * DP;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) {
			V8 k = loadKey(page, e, c, factor), m = turned8(mean, c, p);
			precise vec4 x = k.a - m.a, y = k.b - m.b;
			V8 d = V8(x, y);
			s = dot8(d, d, s);
		}
	} else {
		uint a = h * 2 * DP;
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) s = dot8(turned8(a, c, p), loadKey(page, e, c, factor), s);
		float valueFactor = valueScale(page, e);
		[[dont_unroll]] for (uint c = 0; c < DP / 8; c++) s = dot8(load8(InU4(work), (a + DP) / 8 + c, F32), loadValue(page, e, c, valueFactor), s);
	}
	OutF(out_).v[h * ldo + slot] = s;
}
