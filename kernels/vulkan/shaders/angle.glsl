// cosSin returns cosine and sine of the angle at position p of a frequency, which is given in
// turns per position as a fraction of 2^64, high word first. The product with p is exact but for
// whole turns, so that large positions lose nothing. Error: 1e-7.
vec2 cosSin(uint p, uvec2 frequency) {
	uint high, low;
	umulExtended(p, frequency.y, high, low);
	uint turn = p * frequency.x + high; // as a fraction of 2^32
	uint quadrant = (turn + 0x20000000u) >> 30;
	precise float x = float(int(turn - (quadrant << 30))) * 1.46291808e-9; // 2π/2^32; within ±π/4
	precise float y = x * x;
	precise float s = fma(fma(fma(fma(y, 2.75573192e-6, -1.98412698e-4), y, 8.33333333e-3), y, -1.66666667e-1), y * x, x);
	precise float c = fma(fma(fma(fma(y, 2.48015873e-5, -1.38888889e-3), y, 4.16666667e-2), y, -0.5), y, 1.0);
	vec2 r = (quadrant & 1u) == 0u ? vec2(c, s) : vec2(-s, c);
	return (quadrant & 2u) == 0u ? r : -r;
}
