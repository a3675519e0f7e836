#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "group.glsl"

// Sorts assignments, rows and the experts that they chose, by expert, for products by tiles of
// rows that share one. How those of an expert are ordered does not matter: no result depends on
// where in a tile a row is. One workgroup.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 ids, list;
	uint n, chosen, ldi, experts, tile;
};

shared uint next[4096]; // per expert: assignments, then the place of the next one

void main() {
	uint t = gl_LocalInvocationID.x;
	for (uint e = t; e < experts; e += 256) next[e] = 0;
	barrier();
	for (uint a = t; a < n; a += 256) atomicAdd(next[expertOf(InF(ids), a, chosen, ldi, experts)], 1);
	barrier();
	OutU L = OutU(list);
	if (t == 0) {
		uint tiles = 0, start = 0;
		for (uint e = 0; e <= experts; e++) {
			uint count = e < experts ? next[e] : 0;
			L.v[e] = tiles;
			L.v[startsAt(experts) + e] = start;
			if (e < experts) next[e] = start;
			tiles += (count + tile - 1) / tile;
			start += count;
		}
	}
	barrier();
	for (uint a = t; a < n; a += 256) L.v[orderAt(experts) + atomicAdd(next[expertOf(InF(ids), a, chosen, ldi, experts)], 1)] = a;
}
