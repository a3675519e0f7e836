#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"

// Attention of a tile of query rows over one KV head. A row is one query head of
// one token. Logical slots are visited in blocks that end at multiples of 256:
//
//   score  chain of fma over d = 0 … D-1, times scale, limited by cap if there is one
//   p      2^(score - m), m the largest score of the block; with WB rounded to bf16,
//          and 0 where score - m < -60
//   sum    thread j of 32 adds slots j, j+32, …; the 32 in ascending order
//   acc    lane l of NL adds p·v of slots l, l+NL, … by fma; the lanes in ascending order
//   merge  as package kernels defines it, blocks in ascending order
//
// If the work list is split, a workgroup is one block of a task and leaves (m, sum,
// acc) for combine.comp; otherwise it is a whole task and merges by itself: the same bits.

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint R = 8;  // rows of a tile, at most 8
layout(constant_id = 5) const uint SPLIT_YT = 0; // type of out; 1 more: the list may be split
layout(constant_id = 6) const uint NL = 16;
layout(constant_id = 7) const uint WB = 0; // 1: weights are in bf16
layout(constant_id = 8) const uint AHEAD = 4; // chunks of a key that a thread asks memory for at once
layout(constant_id = 9) const uint SUMS = 1; // rows whose lanes are summed at once: divides R, at most 256/D

#include "activation.glsl"
#include "task.glsl"

layout(push_constant) uniform P {
	uvec2 q, y, stats, tasks, heads;
	uint ldq, ldy, H, KV, window;
	float scale;
	uint group; // H/KV
	uint ldt;   // partial stride in floats: D + 4
	float cap;  // of scores, 0 for none
};

const float NONE = -3.0e38; // no score is below it
const float MIN_WEIGHT = -60.0; // exponent below which a weight in bf16 is 0
const uint CH = DP / 8;
const uint LANES = 256 + 4; // threads, with a gap so that neighbours use different banks
const uint PAGES = 255 / PE + 2; // that the 256 slots of a block can lie in

shared vec4 sq[R * DP / 4];
shared vec4 sp[SUMS * 8 * LANES / 4]; // weights [256][R]; later the lanes of rows [SUMS][8][LANES]
shared uvec2 page[PAGES];
shared float red[256];
shared float sums[256];
shared float top[8], keep[8], take[8]; // of each row: the block's largest score, factors of the merge
shared float allTop[8], allSum[8];

float get(uint i) { return sp[i / 4][i % 4]; }
void put(uint i, float x) { sp[i / 4][i % 4] = x; }

// weights returns the weights of slot s of the block for rows 4i … 4i+3, as far as there are.
vec4 weights(uint s, uint i) {
	if (R >= 4) return sp[s * (R / 4) + i];
	return R == 2 ? vec4(get(2 * s), get(2 * s + 1), 0, 0) : vec4(get(s), 0, 0, 0);
}

// value returns eight elements of an entry's value.
V8 value(uint entry, uint page0, uint chunk) {
	InU4 p = InU4(page[entry / PE - page0]);
	uint e = entry % PE;
	return loadValue(p, e, chunk, valueScale(p, e));
}

// ADD adds the value v of slot s of the block to every row's sums.
#define ADD(s, v) \
	[[unroll]] for (uint i = 0; i < R; i += 4) { \
		vec4 w = weights(s, i / 4); \
		[[unroll]] for (uint r = i; r < min(i + 4, R); r++) { \
			va[r] = fma(vec4(w[r - i]), v.a, va[r]); \
			vb[r] = fma(vec4(w[r - i]), v.b, vb[r]); \
		} \
	}

void main() {
	uint tid = gl_LocalInvocationID.x;
	uint item = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
	Tasks list = Tasks(tasks);
	bool split = (SPLIT_YT & 1u) != 0u && list.total > 0;
	uint ti = item, b0, b1;
	if (split) {
		if (item >= list.total) return;
		ti = findTask(list, list.count, item);
	} else if (item >= list.count) return;
	Task k = list.v[ti];
	b0 = k.first;
	b1 = k.first + k.blocks;
	if (split) {
		b0 += item - k.items;
		b1 = b0 + 1;
	}
	uint tokens = k.shape & 0xffu, gn = k.shape >> 8 & 0xffu, g0 = k.shape >> 16;
	uint rows = tokens * gn, kvh = k.head % KV;
	Head hd = Heads(heads).v[k.head];
	InU2 pages = InU2(hd.pages);

	for (uint i = tid; i < R * DP; i += 256) {
		uint r = i / DP, d = i % DP;
		sq[i / 4][i % 4] = r < rows && d < D ? InF(q).v[(k.row + r / gn) * ldq + (kvh * group + g0 + r % gn) * D + d] : 0.0;
	}
	barrier();

	uint lo0 = firstSlot(k.end, window), hiLast = k.end + tokens - 1;
	uint part = tid / D, comp = tid % D; // which of SUMS rows, and which component of it, the thread sums
	precise float O[R / SUMS]; // that component of every SUMS-th row
	[[unroll]] for (uint i = 0; i < R / SUMS; i++) O[i] = 0.0;
	if (tid < 8) {
		allTop[tid] = NONE;
		allSum[tid] = 0.0;
	}

	for (uint b = b0; b < b1; b++) {
		uint slot = b * 256 + tid;
		bool vis = slot >= lo0 && slot < hiLast;
		uint page0 = (max(b * 256, lo0) - hd.base) / PE, pages0 = (hiLast - 1 - hd.base) / PE - page0 + 1;
		if (tid < min(PAGES, pages0)) page[tid] = pages.v[page0 + tid];
		barrier();
		precise float acc[R];
		[[unroll]] for (uint r = 0; r < R; r++) acc[r] = 0.0;
		if (vis) {
			uint ph = slot - hd.base;
			InU4 keys = InU4(page[ph / PE - page0]);
			uint e = ph % PE;
			float factor = keyScale(keys, e);
			[[dont_unroll]] for (uint c = 0; c < CH; c += AHEAD) {
				V8 kk[AHEAD];
				[[unroll]] for (uint i = 0; i < AHEAD; i++) {
					if (c + i < CH) kk[i] = loadKey(keys, e, c + i, factor);
				}
				[[unroll]] for (uint i = 0; i < AHEAD; i++) {
					if (c + i >= CH) break;
					[[unroll]] for (uint r = 0; r < R; r++) {
						uint q8 = r * (DP / 4) + (c + i) * 2;
						acc[r] = dot8(V8(sq[q8], sq[q8 + 1]), kk[i], acc[r]);
					}
				}
			}
		}
		[[unroll]] for (uint r = 0; r < R; r++) {
			uint hi = k.end + r / gn;
			bool see = vis && r < rows && slot < hi && slot >= firstSlot(hi, window);
			precise float s = acc[r] * scale;
			if (cap > 0.0) s = softCap(s, cap);
			put(tid * R + r, see ? s : NONE);
		}
		barrier();

		uint r32 = tid / 32, j32 = tid % 32;
		if (r32 < R) {
			float m = NONE;
			[[dont_unroll]] for (uint i = 0; i < 8; i++) m = max(m, get((j32 + 32 * i) * R + r32));
			red[tid] = m;
		}
		barrier();
		if (r32 < R) {
			float m = NONE;
			[[dont_unroll]] for (uint i = 0; i < 32; i++) m = max(m, red[r32 * 32 + i]);
			precise float s = 0.0;
			[[dont_unroll]] for (uint i = 0; i < 8; i++) {
				uint at = (j32 + 32 * i) * R + r32;
				float x = get(at);
				float p = x > NONE ? power2(x - m) : 0.0;
				if (WB != 0) p = x - m < MIN_WEIGHT ? 0.0 : roundBF16(p);
				put(at, p);
				s += p;
			}
			sums[tid] = s;
			if (j32 == 0) top[r32] = m;
		}
		barrier();
		if (tid < R) {
			precise float s = 0.0;
			[[dont_unroll]] for (uint i = 0; i < 32; i++) s += sums[tid * 32 + i];
			float m = top[tid];
			if (split) {
				if (tid < rows) {
					OutF Pt = OutF(list.partials);
					Pt.v[(item * 8 + tid) * ldt] = m;
					Pt.v[(item * 8 + tid) * ldt + 1] = s;
				}
			} else {
				float mm = max(allTop[tid], m);
				precise float ra = power2(allTop[tid] - mm), rb = power2(m - mm);
				precise float u = allSum[tid] * ra, w = s * rb;
				allSum[tid] = u + w;
				allTop[tid] = mm;
				keep[tid] = ra;
				take[tid] = rb;
			}
		}

		uint lane = tid / CH, ch = tid % CH;
		precise vec4 va[R], vb[R];
		[[unroll]] for (uint r = 0; r < R; r++) { va[r] = vec4(0); vb[r] = vec4(0); }
		if (lane < NL) {
			// Two at a time, so that memory is asked for both at once.
			[[dont_unroll]] for (uint s = lane; s < 256; s += 2 * NL) {
				uint s0 = b * 256 + s, s1 = s0 + NL;
				bool in0 = s0 >= lo0 && s0 < hiLast, in1 = s1 >= lo0 && s1 < hiLast;
				V8 v0, v1;
				if (in0) v0 = value(s0 - hd.base, page0, ch);
				if (in1) v1 = value(s1 - hd.base, page0, ch);
				if (in0) ADD(s, v0)
				if (in1) ADD(s + NL, v1)
			}
		}
		[[unroll]] for (uint i = 0; i < R / SUMS; i++) {
			barrier();
			if (lane < NL) {
				[[unroll]] for (uint g = 0; g < SUMS; g++) {
					[[unroll]] for (uint x = 0; x < 4; x++) {
						put((8 * g + x) * LANES + tid, va[i * SUMS + g][x]);
						put((8 * g + 4 + x) * LANES + tid, vb[i * SUMS + g][x]);
					}
				}
			}
			barrier();
			if (part < SUMS) {
				precise float a = 0.0;
				[[dont_unroll]] for (uint l = 0; l < NL; l++) a += get((8 * part + comp % 8) * LANES + l * CH + comp / 8);
				uint r = i * SUMS + part;
				if (split) {
					if (r < rows) OutF(list.partials).v[(item * 8 + r) * ldt + 4 + comp] = a;
				} else {
					precise float x = O[i] * keep[r], z = a * take[r];
					O[i] = x + z;
				}
			}
		}
		barrier();
	}
	if (split) return;

	const uint YT = SPLIT_YT & ~1u;
	if (part < SUMS) {
		[[unroll]] for (uint i = 0; i < R / SUMS; i++) {
			uint r = i * SUMS + part;
			precise float o = allSum[r] == 0.0 ? 0.0 : O[i] / allSum[r];
			uint row = k.row + r / gn, h = kvh * group + g0 + r % gn;
			if (YT == F32) {
				if (r < rows) OutF(y).v[row * ldy + h * D + comp] = o;
			} else {
				put(r * D + comp, o);
			}
			if (comp == 0 && r < rows && !isNull(stats)) {
				OutF(stats).v[(row * H + h) * 2] = allTop[r];
				OutF(stats).v[(row * H + h) * 2 + 1] = allSum[r];
			}
		}
	}
	if (YT == F32) return;
	barrier();
	for (uint i = tid; i < rows * D / 2; i += 256) {
		uint r = 2 * i / D, d = 2 * i % D;
		uint row = k.row + r / gn, h = kvh * group + g0 + r % gn;
		OutU(y).v[(row * ldy + h * D + d) / 2] = pack2(get(r * D + d), get(r * D + d + 1), YT);
	}
}
