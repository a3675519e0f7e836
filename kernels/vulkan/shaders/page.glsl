// Pages of a cache, whose types and shape are constants of a pipeline. A page holds PE entries,
// one part after another:
//
//	keys       [DP/8][PE][8] of type T
//	values     [PE][DP] of type VT
//	scales     [PE] f32 of keys, if they are I8
//	scales     [PE] f32 of values, if they are I8
//	positions  [PE]
//
// where DP is the head dimension up to a multiple of 8 and what lies behind it is zero. An
// element of type I8 is its integer times the scale of its entry, rounded once, as
// kernels.IntRows says.

layout(constant_id = 0) const uint T = 2;  // type of keys
layout(constant_id = 1) const uint D = 128; // head dimension
layout(constant_id = 2) const uint PE = 64;
layout(constant_id = 3) const uint VT = 2; // type of values

const uint I8 = 16; // not the number of a type of weights
const uint DP = (D + 7) / 8 * 8;

layout(buffer_reference, std430, buffer_reference_align = 8) buffer OutU2 { uvec2 v[]; };

// sideWords is the size of a page's keys, or of its values, in units of 4 bytes.
uint sideWords(uint type) { return type == I8 ? PE * DP / 4 : pageWords(PE, DP, type) / 2; }

// wordAt is where entry e is in the arrays of words after keys and values: those of scales,
// and then the positions.
uint wordAt(uint array, uint e) { return sideWords(T) + sideWords(VT) + array * PE + e; }
uint keyScaleAt(uint e) { return wordAt(0, e); }
uint valueScaleAt(uint e) { return wordAt(T == I8 ? 1 : 0, e); }
uint positionAt(uint e) { return wordAt((T == I8 ? 1 : 0) + (VT == I8 ? 1 : 0), e); }

// keyAt and valueAt are where elements 8c … 8c+7 of an entry begin, in units of 8 elements of
// their type.
uint keyAt(uint e, uint c) { return keyChunk(e, c, PE); }
uint valueAt(uint e, uint c) { return VT == I8 ? sideWords(T) / 2 + e * (DP / 8) + c : valueChunk(e, c, PE, DP); }

// keyScale and valueScale are the factors of an entry's elements, unused if they are no integers.
float keyScale(InU4 page, uint e) { return T == I8 ? InF(page).v[keyScaleAt(e)] : 1.0; }
float valueScale(InU4 page, uint e) { return VT == I8 ? InF(page).v[valueScaleAt(e)] : 1.0; }

// integers returns eight integers of 8 bits, times a scale.
V8 integers(uvec2 w, float scale) {
	precise vec4 a = vec4(ivec4(w.x << 24, w.x << 16, w.x << 8, w.x) >> 24) * scale;
	precise vec4 b = vec4(ivec4(w.y << 24, w.y << 16, w.y << 8, w.y) >> 24) * scale;
	return V8(a, b);
}

// loadKey and loadValue return elements 8c … 8c+7 of an entry.
V8 loadKey(InU4 page, uint e, uint c, float scale) {
	if (T == I8) return integers(InU2(page).v[keyAt(e, c)], scale);
	return load8(page, keyAt(e, c), T);
}

V8 loadValue(InU4 page, uint e, uint c, float scale) {
	if (VT == I8) return integers(InU2(page).v[valueAt(e, c)], scale);
	return load8(page, valueAt(e, c), VT);
}
