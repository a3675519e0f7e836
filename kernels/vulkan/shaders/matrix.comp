#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#pragma use_vulkan_memory_model
#include "common.glsl"
#include "activation.glsl"

// What matmul.comp computes, of bf16 by bf16, with cooperative matrices: the same
// arguments, but another order of sums.
//
// Order of every sum: k is cut into blocks of 512, and filled up with zeros to a
// multiple of 64. In a block, products of K elements are added one behind the other,
// in ascending order, to a matrix of zeros; how one such step adds up its K
// products is up to the device. The blocks are added to zero in ascending order, in
// f32. All that the constants below choose is who computes what: the bits of
// a result depend on M, N and K alone, which belong to a device.
//
// A workgroup computes a tile of TM rows of x by TN rows of w. Its groups take blocks in
// turn; SUBM × SUBN subgroups of a group share the tile, and the elements of
// both operands that the group keeps in shared memory: BK columns of them, while those of
// the next turns are on their way to registers.
//
// With GLU, a tile has N rows of w[0], then N of w[1], and so on, and y[0] is gated of
// both sums as in matmul.comp.
//
// Compiled with BF16_MATRICES=1, elements are bf16. Compiled with 0 they are f16, for
// devices that have no other matrices: bf16 numbers are converted on their
// way to shared memory, which changes those that are no f16 numbers.
#if BF16_MATRICES
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define ELEMENT float16_t
#endif

layout(local_size_x_id = 0) in; // SG·SUBM·SUBN·GROUPS
layout(constant_id = 1) const uint M = 16;  // rows of x, rows of w and columns
layout(constant_id = 2) const uint N = 16;  // in one step
layout(constant_id = 3) const uint K = 16;  // 8 or 16
layout(constant_id = 4) const uint SG = 32; // invocations of a subgroup
layout(constant_id = 5) const uint TM = 16; // a multiple of SUBM·M
layout(constant_id = 6) const uint TN = 16; // a multiple of SUBN·N, with GLU of twice that
layout(constant_id = 7) const uint BK = 64; // a multiple of K that divides 64
layout(constant_id = 8) const uint BUFFERS = 1; // of staged elements for each group, 1 or 2
layout(constant_id = 9) const uint SUBM = 1;
layout(constant_id = 10) const uint SUBN = 1;
layout(constant_id = 11) const uint GROUPS = 1;
layout(constant_id = 12) const uint DEPTH = 1; // turns for which elements are on their way
layout(constant_id = 13) const uint GLU = 0;
layout(constant_id = 14) const uint YT = 0; // type of y with GLU: f32 or bf16
layout(constant_id = 15) const uint GATE = 0; // activation with GLU

layout(push_constant) uniform P {
	uvec2 x;
	uvec2 w[3], y[3], bias[3]; // addresses; w rows are pitch elements apart, zeros behind cols
	uint rows[3];              // of w
	uint ldy[3];
	uint n_flags; // n | flags << 31: add to y
	uint ldx, cols, pitch;
};

layout(buffer_reference, std430, buffer_reference_align = 8) buffer OutF2 { vec2 v[]; };

const uint BLOCK = 512, STEP = 64;
const uint CHUNKS = BLOCK / BK;         // of a block
const uint TEAM = SG * SUBM * SUBN;     // invocations of a group
const uint ALL = TEAM * GROUPS;
const uint ROW = BK / 8, PITCH = ROW + 1; // in units of 8 elements; the odd pitch spreads rows over the banks
const uint AREA = (TM + TN) * PITCH;    // of one buffer: x, then w
const uint XLOADS = (TM * ROW + TEAM - 1) / TEAM, WLOADS = (TN * ROW + TEAM - 1) / TEAM;
const uint MW = TM / SUBM / M, NW = TN / SUBN / N; // matrices of a subgroup
const uint TO = TN / (1 + GLU);         // outputs of a tile along weights
const uint PAIRS = TM * TO / 2, MINE = (PAIRS + ALL - 1) / ALL;
const uint CELLS = M * N / 2, LANES = (CELLS + SG - 1) / SG;

shared uvec4 stage[GROUPS * BUFFERS * AREA];
shared float sums[GROUPS > 1 ? GROUPS * TM * TN : SUBM * SUBN * M * N];

#define ACC coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

uvec4 element8(uvec4 v) {
#if BF16_MATRICES
	return v;
#else
	uvec4 r;
	[[unroll]] for (uint i = 0; i < 4; i++) r[i] = packHalf2x16(vec2(uintBitsToFloat(v[i] << 16), uintBitsToFloat(v[i] & 0xffff0000u)));
	return r;
#endif
}

// together waits for all that stage elements for each other.
void together() {
	if (SUBM * SUBN == 1) subgroupBarrier();
	else barrier();
}

// before clears those of elements k … k+7 that lie behind the columns.
uvec4 before(uvec4 v, uint k) {
	uint left = cols - min(k, cols);
	[[unroll]] for (uint i = 0; i < 4; i++) v[i] &= left >= 2 * i + 2 ? ~0u : left > 2 * i ? 0xffffu : 0u;
	return v;
}

// first returns the first column of a group's turn.
uint first(uint turn, uint group) { return (turn / CHUNKS * GROUPS + group) * BLOCK + turn % CHUNKS * BK; }

// finish writes outputs o and o+1 of a row; with GLU, a are gates and b their ups.
void finish(uint m, uint nw, uint row, uint o, vec2 a, vec2 b) {
	if (row >= (n_flags & 0x7fffffffu) || o >= nw) return;
	bool two = o + 1 < nw;
	uvec2 ba = m == 0 ? bias[0] : m == 1 ? bias[1] : bias[2];
	precise vec2 s = a;
	if (!isNull(ba)) {
		s.x += InF(ba).v[o];
		if (two) s.y += InF(ba).v[o + 1];
	}
	uvec2 ya = m == 0 ? y[0] : m == 1 ? y[1] : y[2];
	uint ld = m == 0 ? ldy[0] : m == 1 ? ldy[1] : ldy[2], at = row * ld + o;
	if (GLU == 1) {
		precise vec2 u = b;
		if (!isNull(bias[1])) {
			u.x += InF(bias[1]).v[o];
			if (two) u.y += InF(bias[1]).v[o + 1];
		}
		s = vec2(gated(GATE, s.x, u.x), two ? gated(GATE, s.y, u.y) : 0.0);
		if (YT != F32) {
			OutU(ya).v[at / 2] = pack2(s.x, s.y, YT);
			return;
		}
	}
	if (two) {
		OutF2 Y = OutF2(ya);
		if (n_flags >> 31 != 0) s = Y.v[at / 2] + s;
		Y.v[at / 2] = s;
	} else {
		OutF Y = OutF(ya);
		if (n_flags >> 31 != 0) s.x = Y.v[at] + s.x;
		Y.v[at] = s.x;
	}
}

void main() {
	// Which invocations make up a subgroup is the device's affair: number them by subgroup.
	uint lane = gl_SubgroupInvocationID, tid = gl_SubgroupID * SG + lane;
	uint group = GROUPS == 1 ? 0 : gl_SubgroupID / (SUBM * SUBN), sub = gl_SubgroupID - group * SUBM * SUBN;
	uint mate = sub * SG + lane; // the invocation's number in its group
	uint n = n_flags & 0x7fffffffu;

	// Tiles of rows come first, so that workgroups that run together read the same weights.
	uint tile = gl_WorkGroupID.y, m = 0;
	while (GLU == 0 && m < 2 && tile >= (rows[m] + TO - 1) / TO) {
		tile -= (rows[m] + TO - 1) / TO;
		m++;
	}
	uvec2 wa = m == 0 ? w[0] : m == 1 ? w[1] : w[2];
	uint nw = m == 0 ? rows[0] : m == 1 ? rows[1] : rows[2];
	InU4 X = InU4(x);
	uint r0 = gl_WorkGroupID.x * TM, o0 = tile * TO;

	ACC acc[MW * NW], total[MW * NW]; // total: of one group
	[[unroll]] for (uint i = 0; i < MW * NW; i++) acc[i] = total[i] = ACC(0.0);
	precise vec2 sumA[MINE], sumB[MINE]; // of several groups: an invocation owns outputs tid, tid+ALL, …
	[[unroll]] for (uint i = 0; i < MINE; i++) sumA[i] = sumB[i] = vec2(0.0);

	// The first group's blocks are never the shorter ones: it sets how many turns there are.
	uint filled = (cols + STEP - 1) / STEP * STEP;
	uint blocks = (filled + BLOCK - 1) / BLOCK, rounds = (blocks + GROUPS - 1) / GROUPS;
	uint turns = (rounds - 1) * CHUNKS + min(CHUNKS, (filled - (rounds - 1) * GROUPS * BLOCK) / BK);
	uint area = group * BUFFERS * AREA;

	uvec4 xs[DEPTH * XLOADS], ws[DEPTH * WLOADS];
	for (uint t0 = 0; t0 < turns + DEPTH; t0 += DEPTH) [[unroll]] for (uint d = 0; d < DEPTH; d++) {
		// Turn t reads its elements, multiplies those of turn t-DEPTH, and hands over
		// those of the turn between that have come.
		uint t = t0 + d;
		if (t < turns) {
			// Behind the rows and columns the last ones are read again: rows that do
			// not exist have results that nobody wants, columns are cleared below.
			uint k = first(t, group) / 8, end = (cols - 1) / 8;
			[[unroll]] for (uint i = 0; i < WLOADS; i++) {
				uint at = mate + i * TEAM, row = at / ROW;
				bool up = GLU == 1 && row / N % 2 == 1;
				uint o = o0 + (GLU == 1 ? row / N / 2 * N + row % N : row);
				ws[d * WLOADS + i] = InU4(up ? w[1] : wa).v[min(o, nw - 1) * (pitch / 8) + min(k + at % ROW, end)];
			}
			[[unroll]] for (uint i = 0; i < XLOADS; i++) {
				uint at = mate + i * TEAM, row = at / ROW;
				xs[d * XLOADS + i] = X.v[min(r0 + row, n - 1) * (ldx / 8) + min(k + at % ROW, end)];
			}
		}
		if (t >= DEPTH && t - DEPTH < turns) {
			uint last = t - DEPTH, from = area + last % BUFFERS * AREA;
			if (first(last, group) < filled) {
				[[unroll]] for (uint kk = 0; kk < BK / K; kk++) {
					coopmat<ELEMENT, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a[MW];
					coopmat<ELEMENT, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
					[[unroll]] for (uint i = 0; i < MW; i++)
						coopMatLoad(a[i], stage, from + (sub / SUBN * MW + i) * M * PITCH + kk * K / 8, PITCH, gl_CooperativeMatrixLayoutRowMajor);
					[[unroll]] for (uint j = 0; j < NW; j++) {
						coopMatLoad(b, stage, from + (TM + (sub % SUBN * NW + j) * N) * PITCH + kk * K / 8, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
						[[unroll]] for (uint i = 0; i < MW; i++) acc[i * NW + j] = coopMatMulAdd(a[i], b, acc[i * NW + j]);
					}
				}
			}
			if (last % CHUNKS == CHUNKS - 1 || last == turns - 1) {
				if (GROUPS == 1) {
					[[unroll]] for (uint i = 0; i < MW * NW; i++) total[i] = total[i] + acc[i];
				} else {
					// The groups' blocks meet in shared memory.
					[[unroll]] for (uint i = 0; i < MW; i++) {
						[[unroll]] for (uint j = 0; j < NW; j++)
							coopMatStore(acc[i * NW + j], sums, (group * TM + (sub / SUBN * MW + i) * M) * TN + (sub % SUBN * NW + j) * N, TN, gl_CooperativeMatrixLayoutRowMajor);
					}
					barrier();
					uint there = min(GROUPS, blocks - last / CHUNKS * GROUPS);
					[[unroll]] for (uint i = 0; i < MINE; i++) {
						uint p = tid + i * ALL, o = p % (TO / 2) * 2;
						if (p >= PAIRS) break;
						uint c = p / (TO / 2) * TN + (GLU == 1 ? o / N * 2 * N + o % N : o);
						for (uint g = 0; g < there; g++) {
							sumA[i] += vec2(sums[g * TM * TN + c], sums[g * TM * TN + c + 1]);
							if (GLU == 1) sumB[i] += vec2(sums[g * TM * TN + c + N], sums[g * TM * TN + c + N + 1]);
						}
					}
					barrier();
				}
				[[unroll]] for (uint i = 0; i < MW * NW; i++) acc[i] = ACC(0.0);
			}
		}
		if (BUFFERS == 1) together();
		uint come = t + 1 - DEPTH;
		if (t + 1 >= DEPTH && come < turns) {
			uint c = (d + 1) % DEPTH, k = first(come, group), to = area + come % BUFFERS * AREA;
			if (k + BK > cols) {
				[[unroll]] for (uint i = 0; i < WLOADS; i++) ws[c * WLOADS + i] = before(ws[c * WLOADS + i], k + (mate + i * TEAM) % ROW * 8);
				[[unroll]] for (uint i = 0; i < XLOADS; i++) xs[c * XLOADS + i] = before(xs[c * XLOADS + i], k + (mate + i * TEAM) % ROW * 8);
			}
			[[unroll]] for (uint i = 0; i < WLOADS; i++) {
				uint at = mate + i * TEAM;
				if (TN * ROW % TEAM == 0 || at < TN * ROW) stage[to + (TM + at / ROW) * PITCH + at % ROW] = element8(ws[c * WLOADS + i]);
			}
			[[unroll]] for (uint i = 0; i < XLOADS; i++) {
				uint at = mate + i * TEAM;
				if (TM * ROW % TEAM == 0 || at < TM * ROW) stage[to + at / ROW * PITCH + at % ROW] = element8(xs[c * XLOADS + i]);
			}
		}
		together();
	}

	if (GROUPS > 1) {
		[[unroll]] for (uint i = 0; i < MINE; i++) {
			uint p = tid + i * ALL;
			if (p < PAIRS) finish(m, nw, r0 + p / (TO / 2), o0 + p % (TO / 2) * 2, sumA[i], sumB[i]);
		}
		return;
	}
	uint cell = sub * M * N;
	[[unroll]] for (uint i = 0; i < MW; i++) {
		[[unroll]] for (uint j = 0; j < NW; j += 1 + GLU) {
			vec2 a[LANES];
			coopMatStore(total[i * NW + j], sums, cell, N, gl_CooperativeMatrixLayoutRowMajor);
			subgroupBarrier();
			[[unroll]] for (uint l = 0; l < LANES; l++) {
				uint p = lane + l * SG;
				if (p < CELLS) a[l] = vec2(sums[cell + 2 * p], sums[cell + 2 * p + 1]);
			}
			subgroupBarrier();
			if (GLU == 1) {
				coopMatStore(total[i * NW + j + GLU], sums, cell, N, gl_CooperativeMatrixLayoutRowMajor);
				subgroupBarrier();
			}
			[[unroll]] for (uint l = 0; l < LANES; l++) {
				uint p = lane + l * SG;
				if (p >= CELLS) break;
				vec2 b = GLU == 1 ? vec2(sums[cell + 2 * p], sums[cell + 2 * p + 1]) : vec2(0.0);
				finish(m, nw, r0 + (sub / SUBN * MW + i) * M + 2 * p / N, o0 + (sub % SUBN * NW + j) / (1 + GLU) * N + 2 * p % N, a[l], b);
			}
			if (GLU == 1) subgroupBarrier();
		}
	}
}
