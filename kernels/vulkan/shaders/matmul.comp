#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "quants.glsl"
#include "group.glsl"
#include "activation.glsl"

// y[r][o] = Σ_k x[r][k]·w[o][k] (+ bias[o]) (+ y[r][o]) for up to three matrices
// over the same x.
//
// Order of every sum: k is cut into blocks of 2048. In a block, lane i of 16
// takes elements 128g+8i … 128g+8i+7 for g = 0, 1, … as one chain of fma from 0.
// The lanes are added in ascending order, then the blocks in ascending order.
// A workgroup is 16 teams of 16 lanes; a team computes NR rows × NW weights.
//
// With GLU the weights of a team are rows of w[0] and w[1] in turn, and y[0] =
// gated(x·w[0] + bias[0], x·w[1] + bias[1]) from the very same sums.
//
// With experts, the rows of y are assignments, each of a row of x and the matrix of a stack that
// it chose: a workgroup computes one, or a tile of those of one expert (group.glsl).
//
// NR, NW, TR (teams along rows) and GLU (0 or 1) are set when compiling.

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint WT = 2;    // type of w
layout(constant_id = 1) const uint XT = 0;    // type of x: f32 or bf16
layout(constant_id = 2) const uint SPLIT = 1; // teams that share the blocks of an output; NR·NW ≤ 2
layout(constant_id = 3) const uint YT = 0;    // type of y with GLU: f32 or bf16
layout(constant_id = 4) const uint UT = 2;    // type of w[1] with GLU
layout(constant_id = 5) const uint ROWS = 0;  // what the rows of a workgroup are
layout(constant_id = 6) const uint GATE = 0;  // activation with GLU
const uint DENSE = 0, ASSIGNMENT = 1, TILE = 2;

layout(push_constant) uniform P {
	uvec2 x;
	uvec2 w[3], y[3], bias[3]; // addresses; w rows are pitch elements apart, zeros behind cols; see rowUnits
	uint rows[3];              // of w
	uint ldy[3];
	uint n_flags; // n | flags << 31: add to y
	uint ldx, cols, pitch;
};

// With experts, y[2] is the address of their numbers or, with tiles, of the list, and other
// arguments are:
#define experts ldy[2]
#define chosen rows[2]  // of a row
#define sharing rows[1] // assignments of a row of x
#define ldi ldy[1]

const uint BLOCK = 2048, TO = 16 / TR, ACC = NR * NW, NO = NW / (1 + GLU); // NO: outputs of a team along weights

shared float red[16 * 256];

// The rows of the workgroup: how many there are, and where the assignments are in the list.
uint count, listed;

// place returns the row of y that row i of those is.
uint place(uint i) { return ROWS == DENSE ? i : ROWS == ASSIGNMENT ? listed : InU(y[2]).v[listed + i]; }

// findRows finds the rows and returns the first row of their expert's weights.
uint findRows(uint n) {
	count = n;
	if (ROWS == DENSE) return 0;
	uint t = gl_WorkGroupID.y, e;
	if (ROWS == ASSIGNMENT) {
		count = 1;
		listed = t;
		e = expertOf(InF(y[2]), t, chosen, ldi, experts);
	} else {
		InU L = InU(y[2]);
		e = expertOfTile(L, t, experts);
		if (e == experts) {
			count = 0;
			return 0;
		}
		uint start = L.v[startsAt(experts) + e] + (t - L.v[e]) * NR * TR;
		count = L.v[startsAt(experts) + e + 1] - start;
		listed = orderAt(experts) + start;
	}
	return e * rows[0];
}

// typeOf returns the type of weight j of a team.
uint typeOf(uint j) { return GLU == 1 && j % 2 == 1 ? UT : WT; }

void main() {
	uint tid = gl_LocalInvocationID.x, team = tid / 16, lane = tid % 16;
	uint base = findRows(n_flags & 0x7fffffffu);
	if (ROWS == TILE && count == 0) return;
	uint share = team % SPLIT;
	uint outs = TO * NO / SPLIT; // of a workgroup

	uint tile = gl_WorkGroupID.x, m = 0;
	while (GLU == 0 && m < 2 && tile >= (rows[m] + outs - 1) / outs) {
		tile -= (rows[m] + outs - 1) / outs;
		m++;
	}
	uvec2 wa = m == 0 ? w[0] : m == 1 ? w[1] : w[2];
	uint nw = m == 0 ? rows[0] : m == 1 ? rows[1] : rows[2];
	InU4 W = InU4(wa), U = InU4(w[1]);
	InU4 X = InU4(x);
	uint teamO = TR == 1 ? team / SPLIT : team % TO, teamR = TR == 1 ? 0 : team / TO;
	uint first = ROWS == DENSE ? gl_WorkGroupID.y * TR * NR : 0; // row of the workgroup
	uint o0 = tile * outs + teamO * NO, r0 = first + teamR * NR;

	uint wrow[NW], xrow[NR];
	[[unroll]] for (uint j = 0; j < NW; j++) wrow[j] = (base + min(o0 + j / (1 + GLU), nw - 1)) * rowUnits(pitch, typeOf(j));
	[[unroll]] for (uint i = 0; i < NR; i++) xrow[i] = place(min(r0 + i, count - 1)) / (ROWS == DENSE ? 1 : sharing) * (ldx / 8);

	precise float total[(ACC + 15) / 16]; // thread `lane` of a team owns outputs lane, lane+16, …
	[[unroll]] for (uint a = 0; a < (ACC + 15) / 16; a++) total[a] = 0.0;

	uint blocks = (cols + BLOCK - 1) / BLOCK;
	for (uint b0 = 0; b0 < blocks; b0 += SPLIT) {
		uint b = b0 + share;
		precise float acc[ACC];
		[[unroll]] for (uint a = 0; a < ACC; a++) acc[a] = 0.0;
		uint end = min(cols, (b + 1) * BLOCK);
		for (uint k = b * BLOCK + lane * 8; k < end; k += 128) {
			V8 wv[NW];
			[[unroll]] for (uint j = 0; j < NW; j++) wv[j] = weights8(GLU == 1 && j % 2 == 1 ? U : W, wrow[j], k, typeOf(j));
			[[unroll]] for (uint i = 0; i < NR; i++) {
				V8 xv = load8(X, xrow[i] + k / 8, XT);
				if (k + 8 > cols) {
					// What lies behind a row of x may be anything.
					uint left = cols - k;
					xv.a = mix(vec4(0), xv.a, lessThan(uvec4(0, 1, 2, 3), uvec4(left)));
					xv.b = mix(vec4(0), xv.b, lessThan(uvec4(4, 5, 6, 7), uvec4(left)));
				}
				[[unroll]] for (uint j = 0; j < NW; j++) acc[i * NW + j] = dot8(xv, wv[j], acc[i * NW + j]);
			}
		}
		// The lanes meet in shared memory, 16 outputs of each team at a time.
		// Columns are turned by the lane, which spreads them over the banks.
		[[unroll]] for (uint pass = 0; pass < ACC; pass += 16) {
			[[unroll]] for (uint a = pass; a < min(pass + 16, ACC); a++) red[tid * 16 + ((a + lane) & 15u)] = acc[a];
			barrier();
			if (pass + lane < ACC) {
				precise float s = 0.0;
				[[unroll]] for (uint l = 0; l < 16; l++) s += red[(team * 16 + l) * 16 + ((lane + l) & 15u)];
				if (SPLIT == 1) total[pass / 16] += s;
				else red[team * 256 + 15 - lane] = s; // slots that lane 0 leaves free when there are one or two outputs
			}
			barrier();
			if (SPLIT > 1) {
				if (share == 0 && lane < ACC) {
					for (uint t = 0; t < SPLIT && b0 + t < blocks; t++) total[0] += red[(team + t) * 256 + 15 - lane];
				}
				barrier();
			}
		}
	}

	if (GLU == 1) {
		// Gates meet their ups, and neighbours each other, in shared memory.
		if (share == 0) {
			[[unroll]] for (uint p = 0; p < (ACC + 15) / 16; p++) {
				uint a = p * 16 + lane, j = a % NW;
				if (a >= ACC) break;
				uint o = teamO * NO + j / 2;
				uvec2 ba = j % 2 == 0 ? bias[0] : bias[1];
				precise float s = total[p];
				if (!isNull(ba) && tile * outs + o < nw) s += InF(ba).v[tile * outs + o];
				red[((teamR * NR + a / NW) * outs + o) * 2 + j % 2] = s;
			}
		}
		barrier();
		for (uint i = tid; i < NR * TR * outs / 2; i += 256) {
			uint r = i / (outs / 2), o = i % (outs / 2) * 2, at = tile * outs + o;
			if (first + r >= count || at >= nw) continue;
			uint row = place(first + r);
			bool two = at + 1 < nw;
			uint c = (r * outs + o) * 2;
			float a = gated(GATE, red[c], red[c + 1]), b = two ? gated(GATE, red[c + 2], red[c + 3]) : 0.0;
			if (YT == F32) {
				OutF(y[0]).v[row * ldy[0] + at] = a;
				if (two) OutF(y[0]).v[row * ldy[0] + at + 1] = b;
			} else {
				OutU(y[0]).v[(row * ldy[0] + at) / 2] = pack2(a, b, YT);
			}
		}
		return;
	}
	uvec2 ya = m == 0 ? y[0] : m == 1 ? y[1] : y[2];
	uvec2 ba = m == 0 ? bias[0] : m == 1 ? bias[1] : bias[2];
	uint ld = m == 0 ? ldy[0] : m == 1 ? ldy[1] : ldy[2];
	if (share != 0) return;
	[[unroll]] for (uint p = 0; p < (ACC + 15) / 16; p++) {
		uint a = p * 16 + lane;
		if (a >= ACC) break;
		uint r = r0 + a / NW, o = o0 + a % NW;
		if (r >= count || o >= nw) continue;
		r = place(r);
		precise float s = total[p];
		if (!isNull(ba)) s += InF(ba).v[o];
		OutF Y = OutF(ya);
		if (n_flags >> 31 != 0) s = Y.v[r * ld + o] + s;
		Y.v[r * ld + o] = s;
	}
}
