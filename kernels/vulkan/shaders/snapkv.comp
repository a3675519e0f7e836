#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// SnapKV's score from the window's column sums (lukv's snapkv.go): mean over the
// w window rows, smoothing along slots with an odd kernel, reduction over the
// group of query heads, in either order. The last w slots get +Inf.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 sums, scores, heads;
	uint group, head0, window, width, lds, ldo, held;
	uint flags; // 1: maximum along slots, 2: maximum over the group, 4: group first
};

float raw(uint h, uint g, uint t) { return InF(sums).v[(h * group + g) * lds + t] / float(window); }

float reduced(uint h, uint t) {
	precise float v = raw(h, 0, t);
	for (uint g = 1; g < group; g++) {
		float x = raw(h, g, t);
		v = (flags & 2u) != 0u ? max(v, x) : v + x;
	}
	return (flags & 2u) != 0u ? v : v / float(group);
}

void main() {
	uint t = gl_GlobalInvocationID.x, h = gl_WorkGroupID.y;
	uint T = Heads(heads).v[head0 + h].start + held;
	if (t >= T) return;
	uint n = T > 1 ? T - min(window, T) : 0;
	if (t >= n) {
		OutU(scores).v[h * ldo + t] = 0x7f800000u;
		return;
	}
	uint lo = t > width / 2 ? t - width / 2 : 0, hi = min(t + width / 2 + 1, n);
	bool most = (flags & 1u) != 0u;
	precise float v = 0.0;
	if ((flags & 4u) != 0u) {
		for (uint i = lo; i < hi; i++) {
			float x = reduced(h, i);
			v = most ? (i == lo ? x : max(v, x)) : v + x;
		}
		if (!most) v /= float(width);
	} else {
		for (uint g = 0; g < group; g++) {
			precise float p = 0.0;
			for (uint i = lo; i < hi; i++) {
				float x = raw(h, g, i);
				p = most ? (i == lo ? x : max(p, x)) : p + x;
			}
			if (!most) p /= float(width);
			v = g == 0 ? p : (flags & 2u) != 0u ? max(v, p) : v + p;
		}
		if ((flags & 2u) == 0u) v /= float(group);
	}
	OutF(scores).v[h * ldo + t] = v;
}
