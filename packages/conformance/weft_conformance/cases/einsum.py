"""Rows of Einsum: what products, sums, diagonals and repeated axes are made of."""

from __future__ import annotations

from weft_conformance.cases.table import Case, case, f16, f32, f64, i8, i64, of_type

CASES: list[Case] = [
    case("Einsum", f32(3, 4), f32(4, 5), equation="ij,jk->ik"),
    case("Einsum", f32(2, 3, 4), f32(2, 4, 5), equation=" b i j , b j k "),
    case("Einsum", f32(2, 3, 4, 5), f32(2, 6, 4, 5), equation="bqhd,bkhd->bhqk"),
    case("Einsum", f32(2, 1, 3, 4), f32(5, 4, 2), equation="...ij,...jk->...ik"),
    case("Einsum", f32(3, 4), equation="ij->ji"),
    case("Einsum", f32(3, 4), equation="Ab->A"),
    case("Einsum", f32(3, 3), equation="ii"),
    case("Einsum", f32(2, 3, 3), equation="...ii->...i"),
    case("Einsum", f32(3, 2, 3), f32(2), equation="iji,j->i"),
    case("Einsum", f32(3), f32(4), equation="i,j->ji"),
    case("Einsum", f32(2, 3), f32(2, 3), equation="ij,ij->"),
    case("Einsum", f32(2, 3), f32(3, 4), f32(4, 2), equation="ab,bc,ca->b"),
    case("Einsum", f32(2, 3, 4), f32(5), equation="abc,d->ac"),
    case("Einsum", f16(3, 4), f16(4, 2), equation="ij,jk"),
    case("Einsum", f64(3, 4), f64(4), equation="ij,j"),
    case("Einsum", i64(2, 3), i64(3, 2), equation="ij,jk->ki"),
    case("Einsum", i8(2, 3, low=-99, high=99), i8(3, 2, low=-99, high=99), equation="ij,jk->ki"),
    case("Einsum", of_type("uint16", 3, 3, low=0, high=65535), equation="ii"),
]
