// Package raster turns the SVG that package report writes into raster images. It is a
// separate package so that only programs that draw include its fonts.
package raster
