#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "page.glsl"
#include "rotation.glsl"

// Rotates queries in place and stores rotated keys, values and positions in the
// pages; what is stored as integers is left to append.comp. A thread takes four elements:
// of a query or key head i, i+1, i+D/2, i+D/2+1 (half-split layout), of a value head four
// neighbours.

layout(local_size_x = 256) in;
layout(constant_id = 4) const uint RQ = 0; // 1: queries are rounded to bf16

layout(push_constant) uniform P {
	uvec2 q, k, v, cs, rowsAt, heads; // cs: [rows][cosines D/2, sines D/2, if turns > D a factor of q], null: none
	uint n, H, KV, ldq, ldk, ldv, ldt, turns;
};

void store(uvec2 page, uint at, float x, float y) {
	// at is even, in elements.
	if (T == F32) {
		OutF(page).v[at] = x;
		OutF(page).v[at + 1] = y;
	} else {
		OutU(page).v[at / 2] = pack2(x, y, T);
	}
}

void main() {
	const uint quarter = D / 4;
	uint per = (H + 2 * KV) * quarter;
	uint id = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
	if (id >= per) return;
	uint head = id / quarter, c = id % quarter, i = 2 * c;
	if (head < H + KV) {
		InF CS = InF(cs);
		bool isQ = head < H;
		uint at = isQ ? row * ldq + head * D : row * ldk + (head - H) * D;
		OutF X = isQ ? OutF(q) : OutF(k);
		float a0 = X.v[at + i], a1 = X.v[at + i + 1], b0 = X.v[at + D / 2 + i], b1 = X.v[at + D / 2 + i + 1];
		if (!isNull(cs)) {
			uint t = row * ldt + i;
			turn(a0, b0, CS.v[t], CS.v[t + D / 2]);
			turn(a1, b1, CS.v[t + 1], CS.v[t + D / 2 + 1]);
		}
		if (isQ) {
			if (turns > D) {
				float f = CS.v[row * ldt + D];
				a0 *= f;
				a1 *= f;
				b0 *= f;
				b1 *= f;
			}
			if (RQ != 0) {
				a0 = roundBF16(a0);
				a1 = roundBF16(a1);
				b0 = roundBF16(b0);
				b1 = roundBF16(b1);
			}
			X.v[at + i] = a0;
			X.v[at + i + 1] = a1;
			X.v[at + D / 2 + i] = b0;
			X.v[at + D / 2 + i + 1] = b1;
			return;
		}
		if (T == I8) return;
		Row r = Rows(rowsAt).v[row];
		if (r.seq == ~0u) return;
		Head hd = Heads(heads).v[r.seq * KV + head - H];
		uint slot = hd.start + r.offset, e = slot % PE;
		uvec2 page = InU2(hd.pages).v[slot / PE];
		store(page, (i / 8 * PE + e) * 8 + i % 8, a0, a1);
		uint j = i + D / 2;
		store(page, (j / 8 * PE + e) * 8 + j % 8, b0, b1);
		return;
	}
	if (VT == I8) return;
	uint h = head - H - KV;
	Row r = Rows(rowsAt).v[row];
	if (r.seq == ~0u) return;
	Head hd = Heads(heads).v[r.seq * KV + h];
	uint slot = hd.start + r.offset, e = slot % PE;
	uvec2 page = InU2(hd.pages).v[slot / PE];
	InF Vv = InF(v);
	uint at = row * ldv + h * D + 4 * c, to = (PE + e) * DP + 4 * c;
	store(page, to, Vv.v[at], Vv.v[at + 1]);
	store(page, to + 2, Vv.v[at + 2], Vv.v[at + 3]);
	if (c == 0) OutU(page).v[positionAt(e)] = uint(r.pos);
}
