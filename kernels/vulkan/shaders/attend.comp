#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// Attention of a tile of query rows over one KV head. A row is one query head of
// one token. Logical slots are visited in blocks that end at multiples of 256:
//
//   score  chain of fma over d = 0 … D-1, times scale
//   p      2^(score - m), m the largest score of the block; with WB rounded to bf16,
//          and 0 where score - m < -60
//   sum    thread j of 32 adds slots j, j+32, …; the 32 in ascending order
//   acc    lane l of NL adds p·v of slots l, l+NL, … by fma; the lanes in ascending order
//   merge  as package kernels defines it, blocks in ascending order
//
// If the work list is split, a workgroup is one block of a task and leaves (m, sum,
// acc) for combine.comp; otherwise it is a whole task and merges by itself: the same bits.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint T = 2;
layout(constant_id = 1) const uint D = 128;
layout(constant_id = 2) const uint PE = 64;
layout(constant_id = 3) const uint R = 8;  // rows of a tile, at most 8
layout(constant_id = 4) const uint SPLIT_YT = 0; // type of out; 1 more: the list may be split
layout(constant_id = 5) const uint NL = 16;
layout(constant_id = 6) const uint WB = 0; // 1: weights are in bf16

const uint DP = (D + 7) / 8 * 8;

#include "task.glsl"

layout(push_constant) uniform P {
	uvec2 q, y, stats, tasks, heads;
	uint ldq, ldy, H, KV, window;
	float scale;
	uint group; // H/KV
	uint ldt;   // partial stride in floats: D + 4
};

const float NONE = -3.0e38; // no score is below it
const float MIN_WEIGHT = -60.0; // exponent below which a weight in bf16 is 0
const uint CH = DP / 8;

shared float sq[R * DP];
shared float sp[(R < 8 ? 8 : R) * 256]; // weights [256][R]; later the lanes of a row [256][8]
shared float red[256];
shared float sums[256];
shared float top[8], keep[8], take[8]; // of each row: the block's largest score, factors of the merge
shared float allTop[8], allSum[8];

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
		sq[i] = r < rows && d < D ? InF(q).v[(k.row + r / gn) * ldq + (kvh * group + g0 + r % gn) * D + d] : 0.0;
	}
	barrier();

	uint lo0 = firstSlot(k.end, window), hiLast = k.end + tokens - 1;
	precise float O[R]; // component tid of each row
	[[unroll]] for (uint r = 0; r < R; r++) O[r] = 0.0;
	if (tid < 8) {
		allTop[tid] = NONE;
		allSum[tid] = 0.0;
	}

	for (uint b = b0; b < b1; b++) {
		uint slot = b * 256 + tid;
		bool vis = slot >= lo0 && slot < hiLast;
		precise float acc[R];
		[[unroll]] for (uint r = 0; r < R; r++) acc[r] = 0.0;
		if (vis) {
			uint ph = slot - hd.base;
			InU4 page = InU4(pages.v[ph / PE]);
			uint e = ph % PE;
			[[dont_unroll]] for (uint c = 0; c < CH; c++) {
				V8 kk = load8(page, keyChunk(e, c, PE), T);
				[[unroll]] for (uint r = 0; r < R; r++) {
					uint at = r * DP + c * 8;
					V8 qq = V8(vec4(sq[at], sq[at + 1], sq[at + 2], sq[at + 3]), vec4(sq[at + 4], sq[at + 5], sq[at + 6], sq[at + 7]));
					acc[r] = dot8(qq, kk, acc[r]);
				}
			}
		}
		[[unroll]] for (uint r = 0; r < R; r++) {
			uint hi = k.end + r / gn;
			bool see = vis && r < rows && slot < hi && slot >= firstSlot(hi, window);
			precise float s = acc[r] * scale;
			sp[tid * R + r] = see ? s : NONE;
		}
		barrier();

		uint r32 = tid / 32, j32 = tid % 32;
		if (r32 < R) {
			float m = NONE;
			[[dont_unroll]] for (uint i = 0; i < 8; i++) m = max(m, sp[(j32 + 32 * i) * R + r32]);
			red[tid] = m;
		}
		barrier();
		if (r32 < R) {
			float m = NONE;
			[[dont_unroll]] for (uint i = 0; i < 32; i++) m = max(m, red[r32 * 32 + i]);
			precise float s = 0.0;
			[[dont_unroll]] for (uint i = 0; i < 8; i++) {
				uint at = (j32 + 32 * i) * R + r32;
				float x = sp[at];
				float p = x > NONE ? power2(x - m) : 0.0;
				if (WB != 0) p = x - m < MIN_WEIGHT ? 0.0 : roundBF16(p);
				sp[at] = p;
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
			[[dont_unroll]] for (uint s = lane; s < 256; s += NL) {
				uint sl = b * 256 + s;
				if (sl < lo0) continue;
				if (sl >= hiLast) break;
				uint ph = sl - hd.base;
				V8 v = load8(InU4(pages.v[ph / PE]), valueChunk(ph % PE, ch, PE, DP), T);
				[[unroll]] for (uint r = 0; r < R; r++) {
					vec4 p = vec4(sp[s * R + r]);
					va[r] = fma(p, v.a, va[r]);
					vb[r] = fma(p, v.b, vb[r]);
				}
			}
		}
		[[unroll]] for (uint r = 0; r < R; r++) {
			barrier();
			if (lane < NL) {
				[[unroll]] for (uint i = 0; i < 4; i++) {
					sp[tid * 8 + i] = va[r][i];
					sp[tid * 8 + 4 + i] = vb[r][i];
				}
			}
			barrier();
			if (tid < D) {
				precise float a = 0.0;
				[[dont_unroll]] for (uint l = 0; l < NL; l++) a += sp[(l * CH + tid / 8) * 8 + tid % 8];
				if (split) {
					if (r < rows) OutF(list.partials).v[(item * 8 + r) * ldt + 4 + tid] = a;
				} else {
					precise float x = O[r] * keep[r], z = a * take[r];
					O[r] = x + z;
				}
			}
		}
		barrier();
	}
	if (split) return;

	const uint YT = SPLIT_YT & ~1u;
	[[unroll]] for (uint r = 0; r < R; r++) {
		if (tid < D) {
			precise float o = allSum[r] == 0.0 ? 0.0 : O[r] / allSum[r];
			uint row = k.row + r / gn, h = kvh * group + g0 + r % gn;
			if (YT == F32) {
				if (r < rows) OutF(y).v[row * ldy + h * D + tid] = o;
			} else {
				sp[r * D + tid] = o;
			}
			if (tid == 0 && r < rows && !isNull(stats)) {
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
		OutU(y).v[(row * ldy + h * D + d) / 2] = pack2(sp[r * D + d], sp[r * D + d + 1], YT);
	}
}
