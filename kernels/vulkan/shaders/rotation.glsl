// turn rotates elements i and i + D/2 of a head (half-split layout).
void turn(inout float a, inout float b, float c, float s) {
	precise float x = a * c, y = b * s, u = b * c, w = a * s;
	precise float r = x - y, t = u + w;
	a = r;
	b = t;
}
