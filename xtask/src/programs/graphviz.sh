# Draws a graph with Graphviz as SVG and PNG.
# has: dot
# apt: graphviz fonts-dejavu-core

echo 'digraph { a -> b [label="größe"]; b -> c; c -> a }' > g.dot
dot -Tplain g.dot; dot -Tsvg g.dot | grep -c '<g'; dot -Tpng g.dot > g.png; head -c 4 g.png | od -c | head -1; rm g.png
