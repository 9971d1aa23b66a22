# Writes a figure of plotly as a page and as JSON.
# pip: plotly pandas

cat > t.py <<'END'
import json, plotly.express as px, plotly.graph_objects as go
figure = px.scatter(x=[1, 2], y=[3, 4]); figure.write_html("t.html", include_plotlyjs="cdn", div_id="one")
print(json.loads(figure.to_json())["data"][0]["type"], open("t.html").read().count("one"))
print(go.Figure(go.Bar(y=[1])).to_plotly_json()["data"][0]["type"])
END
python t.py
