## One triangle of matrices of ROWS times COLUMNS raw elements, and fill elsewhere; the diagonal is K or at diagonal[0].
<%
at = k.args["diagonal"].load_index("0") if k.has("diagonal") else "K"
%>
${k.for_each("i", "TOTAL")} {
  const int apart = i % COLUMNS - i / COLUMNS % ROWS;
  if (apart ${">=" if upper else "<="} ${at}) { ${y.move("i", x, "i")} } else { ${y.move("i", fill, "0")} }
}
