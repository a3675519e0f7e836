#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"

// y[index[r]][i] += w[r]*x[r][i] for ascending r. A workgroup is some columns of a row of y,
// so that rows of x which share one are added in order.

layout(local_size_x = 256) in;

layout(push_constant) uniform P {
	uvec2 x, y, index, w;
	uint n, rows, ldx, ldy, ldi, ldw;
};

void main() {
	uint i = gl_GlobalInvocationID.x, to = gl_WorkGroupID.y;
	if (i >= n) return;
	precise float s = OutF(y).v[to * ldy + i];
	for (uint r = 0; r < rows; r++) {
		if (InF(index).v[r * ldi] == float(to)) {
			precise float p = InF(w).v[r * ldw] * InF(x).v[r * ldx + i];
			s += p;
		}
	}
	OutF(y).v[to * ldy + i] = s;
}
